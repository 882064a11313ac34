"""Steps: a numbered range around one iteration of training or serving."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING

from torch.compiler import is_dynamo_compiling

from tracekit.capture.emit import close_down_to, default_emitter
from tracekit.errors import UsageError
from tracekit.markers import spelling
from tracekit.markers.steps import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from tracekit.capture.emit import Emitter


class StepCounter:
    """Counts each iteration once, even if several parts of a program announce it.

    A trainer, a profiler and two optimizers may all announce the same step. Each has its own count; the number of
    steps is the largest count. A new requester joins the step that another one has open, or begins the next step.
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
            self._counts[requester] = self._counts.get(requester, joined) + 1
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


@contextmanager
def on_step(listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, calls the listener at every new step, before the step's range is opened."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def steps_awaited() -> bool:
    """Whether a recording of this process waits for steps."""
    return bool(_listeners)


class Step:
    """One iteration, as a context manager. ``index`` is its number, once it has begun."""

    def __init__(
        self,
        name: str,
        kind: str | None,
        sizes: dict[str, int | None],
        requester: str,
        counter: StepCounter,
        emitter: Emitter,
    ) -> None:
        self.index: int | None = None
        self._ended = False
        self._name = name
        self._kind = kind
        self._sizes = sizes
        self._requester = requester
        self._counter = counter
        self._emitter = emitter

    def __enter__(self) -> Self:
        before = self._counter.count
        self.index = self._counter.begin(self._requester)
        if self.index >= before:
            for listener in _listeners:
                listener()
        opener = self._emitter.opener(spelling.step(self._name, self.index, self._kind, self._sizes))
        self._close_ended()
        self._emitter.lane.open.append(self)
        opener()
        return self

    def _close_ended(self) -> None:
        """Closes steps of this thread that another thread ended, as only this one can close them."""
        opened = self._emitter.lane.open
        while opened and isinstance(ended := opened[-1], Step) and ended._ended:
            opened.pop()
            self._emitter.close()

    def __exit__(self, *_exception: object) -> None:
        self._ended = True
        self._counter.end(self._requester)
        opened = self._emitter.lane.open
        if self in opened:
            close_down_to(self, opened, self._emitter.close)
            opened.pop()
            self._emitter.close()


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
    if kind is not None and kind not in KINDS:
        raise UsageError(f"kind: unknown kind of step {kind!r}; expected one of {', '.join(KINDS)}, or None")
    sizes = {"BatchSize": batch_size, "Tokens": tokens}
    target = default_emitter() if emitter is None else emitter
    return Step(name, kind, sizes, requester, STEPS, target)
