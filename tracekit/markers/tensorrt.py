"""The modules that names of TensorRT's layers tell; no dialect, since only their domain says that they are layers.

An engine made from a model that torch exported names its layers by nodes of ONNX: ``/layer1/layer1.0/conv1/Conv +
/layer1/layer1.0/relu/Relu`` is part of ``layer1.0``, ``Reformatting CopyNode for Input Tensor 0 to /fc/Gemm`` of
``fc``. Torch names each scope after the attribute that holds the module, and one in a list after the list too (pytorch:
``torch/onnx``; the texts are those of reports of TensorRT 8.5 and 8.6).
"""

from __future__ import annotations

import re

_LONGEST = 4_096
_MOST_PARTS = 64
_NODE = re.compile(r"(?<![\w/.])/([\w.:-]+(?:/[\w.:-]+)*)")
#: A module of a list that ran before.
_REPEATED = re.compile(r"^(\d+)_\d+$")


def module_of(layer: str) -> tuple[str, ...]:
    """The parts of the path of the innermost module that has all nodes of a layer; empty if that is not known."""
    # Three dots are between the first and the last node of a part that was compiled as a whole.
    nodes = [node.split("/")[:-1] for node in _NODE.findall(layer[:_LONGEST].replace("...", " "))]
    parts: list[str] = []
    around = ""
    for scopes in zip(*nodes, strict=False):
        if len(set(scopes)) > 1:
            break
        parts += (_REPEATED.sub(r"\1", part) for part in scopes[0].removeprefix(f"{around}.").split("."))
        around = scopes[0]
    return tuple(parts) if all(parts) and len(parts) <= _MOST_PARTS else ()
