"""Steps: a range around one iteration of training or serving, numbered."""

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
    """Counts iterations that several parts of a program announce, each iteration once.

    A trainer, a profiler and two optimizers may all say that a step was made. Each has its own count, and the number
    of steps is the largest of them; who speaks for the first time joins the step that another has open, or else
    begins the next.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._open: list[str] = []
        self._lock = Lock()
        self._now = 0

    @property
    def count(self) -> int:
        """Steps begun so far."""
        return self._now

    def begin(self, requester: str) -> int:
        """Counts one more step of a requester; the number of the step, from 0."""
        with self._lock:
            running = any(other != requester for other in self._open)
            joined = self._now - 1 if running else self._now
            self._counts[requester] = self._counts.get(requester, joined) + 1
            self._now = max(self._now, self._counts[requester])
            self._open.append(requester)
            return self._now - 1

    def end(self, requester: str) -> None:
        """The step that the requester began last is over."""
        with self._lock:
            if requester in self._open:
                self._open.remove(requester)

    def forget(self, requester: str) -> None:
        """Drops a requester that announces no more steps."""
        with self._lock:
            self._counts.pop(requester, None)


#: The process's steps.
STEPS = StepCounter()
#: Told before the range of a new step is opened.
_listeners: list[Callable[[], object]] = []


@contextmanager
def told_of_steps(listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, tells of every new step before its range is opened."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Step:
    """One iteration, as a context manager; ``index`` is its number."""

    def __init__(
        self,
        name: str,
        kind: str | None,
        said: dict[str, int | None],
        requester: str,
        counter: StepCounter,
        emitter: Emitter,
    ) -> None:
        self.index: int | None = None
        self._name = name
        self._kind = kind
        self._said = said
        self._requester = requester
        self._counter = counter
        self._emitter = emitter

    def __enter__(self) -> Self:
        before = self._counter.count
        self.index = self._counter.begin(self._requester)
        if self.index >= before:
            for listener in _listeners:
                listener()
        opener = self._emitter.opener(spelling.step(self._name, self.index, self._kind, self._said))
        self._emitter.lane.open.append(self)
        opener()
        return self

    def __exit__(self, *_exception: object) -> None:
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
    """Marks one iteration: a range around what stands under ``with``.

    Args:
        name: What to call it.
        kind: ``train``, ``prefill``, ``decode`` or ``mixed``.
        batch_size: Requests or samples in it.
        tokens: Tokens computed in it.
        requester: Who announces it, where several parts of a program announce the same iterations.
        emitter: Where the range goes; NVTX unless given.
    """
    if is_dynamo_compiling():
        return nullcontext()
    if kind is not None and kind not in KINDS:
        raise UsageError(f"a step is {', '.join(KINDS)} or of no kind, not {kind!r}")
    said = {"BatchSize": batch_size, "Tokens": tokens}
    to = default_emitter() if emitter is None else emitter
    return Step(name, kind, said, requester, STEPS, to)
