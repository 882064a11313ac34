"""Operator markers: a range around every operator, spelled as ``torch.autograd.profiler.emit_nvtx`` spells it.

``aten::addmm, seq = 4, op_id = 12, sizes = [[8], [2, 4], [4, 8], [], []]``: ``seq`` is the number of the backward node
that the operator creates or, if it creates none, of the next one; inside a backward pass, it is the number of the
running node. With CUDA, torch's own observer writes these ranges. Without CUDA it cannot, so a dispatch mode writes
them: it sees operators below autograd (``aten::addmm``, not ``aten::linear``), on the thread that entered it.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.profiler import emit_nvtx
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from tracekit.capture.emit import Nvtx, default_emitter

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch.autograd.graph import Node

    from tracekit.capture.emit import Emitter


def operator_markers(emitter: Emitter | None = None) -> AbstractContextManager[object]:
    """Marks every operator that runs in the body of a ``with`` statement.

    Every range has a text of its own, which is expensive: use it for a few steps only.

    Args:
        emitter: Where the ranges go. Defaults to NVTX.
    """
    target = default_emitter() if emitter is None else emitter
    if isinstance(target, Nvtx) and torch.cuda.is_available():
        observer: AbstractContextManager[object] = emit_nvtx(  # type: ignore[no-untyped-call]
            record_shapes=True
        )
        return observer
    return _Operators(target)


class _Operators(TorchDispatchMode):
    def __init__(self, emitter: Emitter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._emitter = emitter
        self._number = count(1)

    @classmethod
    @override
    def ignore_compile_internals(cls) -> bool:
        """Lets torch.compile compile while operators are marked; else it would run everything eagerly, in silence."""
        return True

    @override
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        text = f"{_name(func)}, seq = {_sequence(args)}, op_id = {next(self._number)}"
        self._emitter.opener(f"{text}, sizes = {[_sizes(item) for item in args]}")()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._emitter.close()


def _name(func: Callable[..., Any]) -> str:
    """The operator's name without its overload: ``aten::addmm``."""
    namespace, _, name = str(func).partition(".")
    return f"{namespace}::{name.partition('.')[0]}"


def _sequence(args: tuple[Any, ...]) -> int:
    node: Node | None = torch._C._current_autograd_node()
    if node is not None:
        return int(node._sequence_nr())
    following = _get_sequence_nr()
    creates_node = torch.is_grad_enabled() and any(
        isinstance(item, torch.Tensor) and item.requires_grad for item in args
    )
    return following - 1 if creates_node else following


def _sizes(item: object) -> list[int]:
    if not isinstance(item, torch.Tensor) or item.is_nested:
        return []
    return [dim for dim in item.shape if type(dim) is int]
