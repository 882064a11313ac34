"""FLOPs of a call, from what its marker records: class, parameters, settings and shapes. Knows no traces and no torch.

Counted is what ``torch.utils.flop_counter`` counts (torch 2.13, ``flop_registry``): matrix products, convolutions and
attention, a multiplication and an addition as two; everything else (elementwise work, norms, softmax, pooling,
embeddings) as nothing. Shapes are those of the process that ran the call: of a layer spread over several GPUs, each
rank counts its part.

To add a kind of layer: write a formula in ``layers.py``, add it to ``FORMULAS``, and a layer of that kind to
``tests/flops/test_formulas.py``, which compares it with torch's count. Next to ``layers``: ``operators`` (FLOPs by
operator), ``kernels`` (names of work that multiplies no matrices), ``tensors`` (bytes, and the dtype of products),
``peaks`` (of GPUs) and ``judging`` (what to believe).
"""
