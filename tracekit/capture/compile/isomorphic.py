"""Tells pieces whose compiled code is interchangeable, by a text of everything that the code depends on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN = (
    type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(Ellipsis),
)  # fmt: skip


class _Unknown(Exception):  # noqa: N818
    """Something of which a text does not say all."""


def piece_key(
    graph: fx.GraphModule, inputs: Sequence[object], settings: Mapping[str, object]
) -> str | None:
    """The key of a piece compiled for these inputs; None if no safe one can be made."""
    numbers = {node: number for number, node in enumerate(graph.graph.nodes)}
    try:
        lines = [_line(node, numbers) for node in graph.graph.nodes]
        lines += [_input(value) for value in inputs]
        lines += [
            _constant(sorted(settings.items())),
            str(torch.is_grad_enabled()),
            torch.__version__,
        ]
    except _Unknown:
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _line(node: fx.Node, numbers: Mapping[fx.Node, int]) -> str:
    if node.op in ("get_attr", "call_module"):
        raise _Unknown
    target = "" if node.op == "placeholder" else _target(node.target)
    args = fx.node.map_arg((node.args, node.kwargs), lambda item: _Number(numbers[item]))
    return f"{node.op} {target} {_constant(args)}"


class _Number(int):
    """A node in an argument."""


def _target(target: object) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    name = getattr(target, "__qualname__", getattr(target, "__name__", None))
    module = getattr(target, "__module__", None) or ""
    if (
        name is None
        or "<" in name
        or module.partition(".")[0] not in ("torch", "_operator", "math", "builtins", "")
    ):
        raise _Unknown
    return f"{module}.{name}"


def _constant(item: object) -> str:
    if isinstance(item, _Number):
        return f"%{int(item)}"
    if isinstance(item, _PLAIN):
        return f"{type(item).__name__}:{item!r}"
    if isinstance(item, slice):
        return f"slice{_constant((item.start, item.stop, item.step))}"
    if isinstance(item, tuple | list):
        return f"{type(item).__name__}({','.join(map(_constant, item))})"
    if isinstance(item, dict):
        return f"dict{_constant(list(item.items()))}"
    raise _Unknown


def _input(value: object) -> str:
    if isinstance(value, torch.SymInt):
        return f"SymInt {value.node.expr}"
    if isinstance(value, torch.Tensor):
        if value.is_sparse or value.layout is not torch.strided:
            raise _Unknown
        shape, strides = map(str, value.shape), map(str, value.stride())
        said = (
            value.dtype,
            value.device,
            value.requires_grad,
            value.storage_offset(),
            type(value).__name__,
        )
        return f"{' '.join(shape)} | {' '.join(strides)} | {said}"
    return _constant(value)
