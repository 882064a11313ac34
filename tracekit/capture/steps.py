"""Steps and operators: a numbered range around one iteration of training or serving, and one around every operator."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import torch
from torch.autograd.profiler import emit_nvtx
from torch.compiler import is_dynamo_compiling

from tracekit.capture.emit import Emitter, among, close_entry, default_emitter
from tracekit.errors import UsageError
from tracekit.markers import formatting
from tracekit.markers.formatting import STEP_KINDS

#: Numbers of the process's steps.
_numbers = count()
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
    """One iteration, as a context manager. ``index`` is its number, -1 before it has begun."""

    _name: str
    _kind: str | None
    _sizes: dict[str, int | None]
    _emitter: Emitter
    index: int = field(default=-1, init=False)
    _ended: bool = field(default=False, init=False)
    _joined: bool = field(default=False, init=False)

    def __enter__(self) -> Self:
        opened = self._emitter.lane.open
        # Steps of this thread that another thread ended: only this one can close them.
        while opened and isinstance(ended := opened[-1], Step) and ended._ended:
            opened.pop()
            self._emitter.close()
        around = next((entry for entry in reversed(opened) if isinstance(entry, Step)), None)
        if around is not None and not around._joined:  # the same iteration, such as a trainer's and a profiler's
            around._joined, self.index = True, around.index
        else:
            self.index = next(_numbers)
            for listener in _listeners:
                listener()
        opener = self._emitter.opener(formatting.step(self._name, self.index, self._kind, self._sizes))
        opened.append(self)
        opener()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended = True
        close_entry(self, self._emitter)


def step(
    name: str = "step",
    *,
    kind: str | None = None,
    batch_size: int | None = None,
    tokens: int | None = None,
    emitter: Emitter | None = None,
) -> Step | nullcontext[None]:
    """Marks one iteration: a range around the body of a ``with`` statement.

    The first step inside another one of its thread is the same iteration, announced once more.

    Args:
        name: The step's name.
        kind: ``train``, ``prefill``, ``decode`` or ``mixed``.
        batch_size: Number of requests or samples in the step.
        tokens: Number of tokens computed in the step.
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
    return Step(name, kind, sizes, target)


def operator_markers() -> AbstractContextManager[object]:
    """Marks every operator that runs in the body of a ``with`` statement, by torch's ``emit_nvtx``.

    ``aten::addmm, seq = 4, op_id = 12, sizes = [[8], [2, 4], [4, 8], [], []]``: ``seq`` is the number of the backward
    node that the operator creates or, if it creates none, of the next one; inside a backward pass, it is the number of
    the running node. Every range has a text of its own, which is expensive: use it for a few steps only.

    Raises:
        UsageError: If there is no GPU.
    """
    if not torch.cuda.is_available():
        raise UsageError("torch marks operators only on a GPU; without one, run: tracekit capture --engine torch --ops")
    return emit_nvtx(record_shapes=True)  # type: ignore[no-untyped-call]
