"""Does tasks in this process, one after the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from tracekit.engines.base import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.engines.base import Result, Task
    from tracekit.progress import Progress


#: What asks for this engine.
NAME = "here"


def engine(scheduler: str | None) -> Here | None:
    """This process, where it is asked for by name."""
    return Here() if scheduler == NAME else None


class Here:
    """This process. A task that is killed takes it along."""

    shares_files = True

    def __enter__(self) -> Self:
        """Nothing has to be started."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""

    def outcomes(self, tasks: Sequence[Task[Result]], progress: Progress) -> Iterator[Outcome[Result]]:
        """Does each task when its outcome is asked for."""
        for number, task in enumerate(tasks):
            yield Outcome(number, task.function(partial(progress, task.name)))
