"""FLOPs of a call, from what its marker tells: class, parameters, settings and shapes. Knows no traces and no torch.

Counted is what ``torch.utils.flop_counter`` counts (torch 2.13, ``flop_registry``): matrix products, convolutions and
attention, a multiplication and an addition as two; everything else (elementwise work, norms, softmax, pooling,
embeddings) as nothing. Shapes are those of the process that ran the call: of a layer spread over several GPUs, each
rank counts its part.

To add a kind of layer: write ``flops/<kind>.py`` with the name of :class:`~tracekit.flops.base.Formula`, add the
module to ``FORMULAS``, and a layer of that kind to ``tests/flops/test_formulas.py``, which compares it with torch's
count. Beside the formulas: ``operators`` (FLOPs by operator), ``kernels`` (names of work that multiplies no matrices),
``tensors`` and ``dtypes`` (bytes, and the dtype of products), ``peaks`` (of GPUs), ``judging`` (what to believe)
and ``compiled`` (why those of compiled kernels are not known).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.flops import attention, convolution, linear, recurrent, without_products
from tracekit.flops.base import Unknown

if TYPE_CHECKING:
    from tracekit.flops.base import Call, Formula

FORMULAS: tuple[Formula, ...] = (linear, convolution, attention, recurrent, without_products)

_LARGEST = 2**63 - 1


def flops_of(call: Call) -> int | Unknown | None:
    """The FLOPs of one run of a call itself, without the modules that it calls.

    Returns:
        The number; the reason why it is not known; or None if no formula knows the class.
    """
    call = call.without_unknown_dimensions()
    for formula in FORMULAS:
        flops = formula.flops(call)
        if isinstance(flops, int) and flops > _LARGEST:
            return Unknown("a number too large to be true")
        if flops is not None:
            return flops
    return None
