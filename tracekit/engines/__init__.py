"""Where a report is worked on: in this process, in others of this machine, or on a Dask cluster.

To do one thing with many reports and get small results back, :func:`mapped`. To run tasks and take each outcome as it
ends, :func:`opened`. To add an engine, write a file with an :class:`~tracekit.engines.base.Engine`, and add that to
:func:`opened` and the file to its contract in ``pyproject.toml``.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from tracekit.engines.base import IN_PROCESS, Engine, InProcess, Outcome, Share, Task
from tracekit.engines.dask import PROTOCOLS, Dask
from tracekit.engines.processes import Processes
from tracekit.errors import TracekitError, UsageError
from tracekit.progress import Progress, no_progress

__all__ = ["Engine", "Outcome", "Share", "Task", "mapped", "opened"]

Argument = TypeVar("Argument")
Result = TypeVar("Result")
#: What starting processes costs; work that is done sooner is done in this process.
_START_S = 1.0


def opened(scheduler: str | None = None) -> Engine:
    """The engine to do tasks with, as the block of a ``with``.

    ``scheduler`` is the address of the scheduler of a Dask cluster, such as ``tcp://10.0.0.1:8786``; ``here`` for this
    process; None for processes of this machine.
    """
    if scheduler is None:
        return Processes()
    if scheduler == IN_PROCESS:
        return InProcess()
    if scheduler.startswith(PROTOCOLS):
        return Dask(scheduler)
    address = "the address of a Dask cluster, such as tcp://10.0.0.1:8786"
    raise UsageError(f"a scheduler is {address}, or {IN_PROCESS}, not {scheduler!r}")


def mapped(
    function: Callable[[Argument], Result],
    arguments: Sequence[Argument],
    *,
    scheduler: str | None = None,
    stage: str = "reading",
    progress: Progress = no_progress,
    needed_bytes: int = 0,
) -> Iterator[Result]:
    """Results of a function for each of many arguments, in their order; only those that wait for earlier ones are kept.

    The first second is worked in this process, so that few small reports cost no start of others. The function is one
    of a module, or a ``functools.partial`` of one; one call takes ``needed_bytes`` of memory. ``progress`` is called
    with the stage and the share of the arguments that are done.
    """
    done = 0
    spent_s = 0.0 if scheduler is None else _START_S
    while done < len(arguments) and spent_s < _START_S:
        began = time.monotonic()
        result = function(arguments[done])
        spent_s += time.monotonic() - began
        done += 1
        progress(stage, done / len(arguments))
        yield result
    if done == len(arguments):
        return
    tasks = [Task(stage, partial(_called, function, argument), needed_bytes) for argument in arguments[done:]]
    with opened(scheduler) as engine:
        for ended, result in enumerate(_in_order(engine.outcomes(tasks, no_progress)), done + 1):
            progress(stage, ended / len(arguments))
            yield result


def _in_order(outcomes: Iterator[Outcome[Result]]) -> Iterator[Result]:
    early: dict[int, Result] = {}
    following = 0
    for outcome in outcomes:
        if outcome.lost is not None:
            problem = f"a process that worked on a report ended early ({outcome.lost})"
            raise TracekitError(f"{problem}; free memory if it ran out of memory, and try again")
        early[outcome.number] = outcome.result  # type: ignore[assignment]  # None only where the function returns it
        while following in early:
            yield early.pop(following)
            following += 1


def _called(function: Callable[[Argument], Result], argument: Argument, _share: Share) -> Result:
    return function(argument)
