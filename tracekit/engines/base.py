"""What a task is, how it ended, what does tasks, and the simplest that does. It does not know reports and datasets."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

from tracekit.progress import Progress

Result = TypeVar("Result")
#: Called by a task, from any of its threads, with the share of it that is done, 0 to 1.
Share = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """Work on one report, which may be done in another process or on another machine.

    The function can be pickled, as what it returns and raises: it is one of a module, or a ``functools.partial`` of
    one. Progress shows the name. ``needed_bytes`` estimates the memory that it takes.
    """

    name: str
    function: Callable[[Share], Result]
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What the task of that number returned; or how the process that did it was lost, such as ``signal 9``."""

    number: int
    result: Result | None
    lost: str | None = None


class Engine(Protocol):
    """Does tasks as long as it is open. What it started has ended when the block ends, however that ends."""

    #: Whether tasks see the files of this process, at the same paths, and can write next to them.
    shares_files: bool

    def __enter__(self) -> Self:
        """Opens it."""

    def __exit__(self, *_: object) -> None:
        """Stops what still runs; whatever that has begun to write is removed."""

    def outcomes(self, tasks: Sequence[Task[Result]], progress: Progress) -> Iterator[Outcome[Result]]:
        """Does tasks; their outcomes come as they end, in any order.

        ``progress`` is called from any thread with the name of a task and the share of it that is done.
        """


def throttled(report: Share, step: float) -> Share:
    """Reports the share of one task that is done, from any of its threads, each time it has grown by a step."""
    lock, last = threading.Lock(), 0.0

    def share(done: float) -> None:
        nonlocal last
        with lock:
            if done >= last + step or last < done == 1:
                last = done
                report(done)

    return share


#: What asks for this process.
IN_PROCESS = "here"


class InProcess:
    """This process, one task after the other. A task that is killed takes it along."""

    shares_files = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def outcomes(self, tasks: Sequence[Task[Result]], progress: Progress) -> Iterator[Outcome[Result]]:
        """Does each task when its outcome is asked for."""
        for number, task in enumerate(tasks):
            yield Outcome(number, task.function(partial(progress, task.name)))
