"""What a task is, how it ended, and what does tasks. Knows nothing of reports and datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.progress import Progress

Result = TypeVar("Result")
#: Told by a task, from any of its threads, which share of it is done, 0 to 1.
Share = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """Work on one report, which may be done in another process or on another machine.

    Attributes:
        name: Its name in progress.
        function: Does it. It can be pickled, as what it returns and raises: a function of a module, or a
            ``functools.partial`` of one.
        needed_bytes: Estimate of the memory that it takes.
    """

    name: str
    function: Callable[[Share], Result]
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """How a task ended.

    Attributes:
        number: The task's number among those that were given.
        result: What its function returned.
        lost: How the process that did it ended early, such as ``signal 9``; None if it returned.
    """

    number: int
    result: Result | None
    lost: str | None = None


class Engine(Protocol):
    """Does tasks as long as it is open. What it started has ended when the block ends, however that ends."""

    #: Whether tasks see the files of this process, at the same paths, and can write beside them.
    shares_files: bool

    def __enter__(self) -> Self:
        """Opens it."""

    def __exit__(self, *_: object) -> None:
        """Stops what still runs; whatever that has begun to write is removed."""

    def outcomes(self, tasks: Sequence[Task[Result]], progress: Progress) -> Iterator[Outcome[Result]]:
        """Does tasks; their outcomes come as they end, in any order.

        Args:
            tasks: The tasks.
            progress: Called from any thread with the name of a task and the share of it that is done.

        Raises:
            Exception: What the function of a task raises.
        """


class Maker(Protocol):
    """A module that is one engine."""

    def engine(self, scheduler: str | None, /) -> Engine | None:
        """The engine, if it is the one that is asked for."""
