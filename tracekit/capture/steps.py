"""Steps and operators: a numbered range around one iteration of training or serving, and one around every operator."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, Self

import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.graph import Node
from torch.autograd.profiler import emit_nvtx
from torch.compiler import is_dynamo_compiling
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from tracekit.capture.emit import Emitter, Nvtx, among, close_entry, default_emitter
from tracekit.errors import UsageError
from tracekit.markers import formatting
from tracekit.markers.formatting import STEP_KINDS


class StepCounter:
    """Counts each iteration once, even if several parts of a program announce it, such as a trainer and a profiler.

    Each has its own count; the number of steps is the largest. A new requester joins the step that another one has
    open, or begins the next step; so does one that has missed more than one step.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._open: list[str] = []
        self._lock = Lock()
        self._now = 0

    @property
    def count(self) -> int:
        """Number of steps begun so far."""
        return self._now

    def begin(self, requester: str) -> int:
        """Counts one more step of a requester. Returns the step's number, from 0."""
        with self._lock:
            running = any(other != requester for other in self._open)
            joined = self._now - 1 if running else self._now
            count = self._counts.get(requester, joined)
            self._counts[requester] = (count if count >= self._now - 1 else joined) + 1
            self._now = max(self._now, self._counts[requester])
            self._open.append(requester)
            return self._now - 1

    def end(self, requester: str) -> None:
        """Ends the step that the requester began last."""
        with self._lock:
            if requester in self._open:
                self._open.remove(requester)

    def forget(self, requester: str) -> None:
        """Drops a requester that will announce no more steps."""
        with self._lock:
            self._counts.pop(requester, None)


#: The process's step counter.
STEPS = StepCounter()
#: Called before the range of a new step is opened.
_listeners: list[Callable[[], object]] = []


def on_step(listener: Callable[[], object]) -> AbstractContextManager[None]:
    """While the block runs, calls the listener at every new step, before the step's range is opened."""
    return among(_listeners, listener)


def steps_awaited() -> bool:
    """Whether a recording of this process waits for steps."""
    return bool(_listeners)


@dataclass(eq=False, repr=False)
class Step:
    """One iteration, as a context manager. ``index`` is its number, once it has begun."""

    _name: str
    _kind: str | None
    _sizes: dict[str, int | None]
    _requester: str
    _emitter: Emitter
    index: int | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    def __enter__(self) -> Self:
        before = STEPS.count
        self.index = STEPS.begin(self._requester)
        if self.index >= before:
            for listener in _listeners:
                listener()
        opener = self._emitter.opener(formatting.step(self._name, self.index, self._kind, self._sizes))
        opened = self._emitter.lane.open
        # Steps of this thread that another thread ended: only this one can close them.
        while opened and isinstance(ended := opened[-1], Step) and ended._ended:
            opened.pop()
            self._emitter.close()
        opened.append(self)
        opener()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended = True
        STEPS.end(self._requester)
        close_entry(self, self._emitter)


def step(
    name: str = "step",
    *,
    kind: str | None = None,
    batch_size: int | None = None,
    tokens: int | None = None,
    requester: str = "",
    emitter: Emitter | None = None,
) -> Step | nullcontext[None]:
    """Marks one iteration: a range around the body of a ``with`` statement.

    Args:
        name: The step's name.
        kind: ``train``, ``prefill``, ``decode`` or ``mixed``.
        batch_size: Number of requests or samples in the step.
        tokens: Number of tokens computed in the step.
        requester: Which part of the program announces the step, if several announce the same iterations.
        emitter: Where the range goes. Defaults to NVTX.

    Raises:
        UsageError: If ``kind`` is unknown.
    """
    if is_dynamo_compiling():
        return nullcontext()
    if kind is not None and kind not in STEP_KINDS:
        raise UsageError(f"kind: unknown kind of step {kind!r}; expected one of {', '.join(STEP_KINDS)}, or None")
    sizes = {"BatchSize": batch_size, "Tokens": tokens}
    target = default_emitter() if emitter is None else emitter
    return Step(name, kind, sizes, requester, target)


def operator_markers(emitter: Emitter | None = None) -> AbstractContextManager[object]:
    """Marks every operator that runs in the body of a ``with`` statement, as torch's ``emit_nvtx`` spells it.

    ``aten::addmm, seq = 4, op_id = 12, sizes = [[8], [2, 4], [4, 8], [], []]``: ``seq`` is the number of the backward
    node that the operator creates or, if it creates none, of the next one; inside a backward pass, it is the number of
    the running node. With CUDA, torch's own observer writes these ranges. Without CUDA it cannot, so a dispatch mode
    writes them: it sees operators below autograd (``aten::addmm``, not ``aten::linear``) of the thread that entered.

    Every range has a text of its own, which is expensive: use it for a few steps only.

    Args:
        emitter: Where the ranges go. Defaults to NVTX.
    """
    target = default_emitter() if emitter is None else emitter
    if isinstance(target, Nvtx) and torch.cuda.is_available():
        return emit_nvtx(record_shapes=True)  # type: ignore[no-untyped-call]
    return _Operators(target)


class _Operators(TorchDispatchMode):
    def __init__(self, emitter: Emitter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._emitter = emitter
        self._number = count(1)

    @classmethod
    @override
    def ignore_compile_internals(cls) -> bool:
        """Lets torch.compile compile while operators are marked; otherwise it runs everything eagerly, in silence."""
        return True

    @override
    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        text = f"{_name(func)}, seq = {_sequence(args)}, op_id = {next(self._number)}"
        self._emitter.opener(f"{text}, sizes = {[_sizes(item) for item in args]}")()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._emitter.close()


def _name(func: Callable[..., Any]) -> str:
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
