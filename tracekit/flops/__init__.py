"""FLOPs of a call, from what its marker records: class, parameters, settings and shapes. Knows no traces and no torch.

``README.md`` in this folder explains what counts, lists the modules, and says how to add a layer or a GPU.
"""
