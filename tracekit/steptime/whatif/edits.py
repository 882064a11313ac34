"""Changes of single calls and single pieces of work, by their rows: calls that go, work that goes, calls that block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts
from tracekit.arrays.intervals import covered
from tracekit.arrays.types import Floats, Ints, Rows
from tracekit.steptime.whatif.changes import Changing

Edit: TypeAlias = Callable[[Changing], None]


class Removal(NamedTuple):
    """CUDA calls that no longer happen, how much of the code before each goes too, work, and the time of it all."""

    calls: Rows
    code: Ints
    work: Rows
    ns: int


class Stretches(NamedTuple):
    """Stretches of time on host threads."""

    thread: Rows
    start: Ints
    end: Ints


def without(changing: Changing, removal: Removal) -> None:
    """Calls and work no longer happen: what waited for them waits for what was before them on their streams."""
    tasks, gone = changing.tasks, counts(removal.work, changing.tasks.lasts.size) > 0
    instead = np.arange(gone.size)
    while (rows := np.flatnonzero((instead >= 0) & gone[instead])).size:
        instead[rows] = tasks.before[instead[rows]]
    one, other, lag = tasks.dependent
    dependent = ~gone[one] & (instead[other] >= 0)
    calls, awaited, after = tasks.awaited
    kept = instead[awaited] >= 0
    changing.tasks = replace(
        tasks,
        lasts=np.where(gone, 0, tasks.lasts),
        before=lookup(instead, tasks.before),
        waits_for=lookup(instead, tasks.waits_for),
        meeting=np.where(gone, -1, tasks.meeting),
        dependent=(one[dependent], instead[other[dependent]], lag[dependent]),
        awaited=(calls[kept], instead[awaited[kept]], after[kept]),
    )
    changing.without_waiting(counts(removal.calls, tasks.takes.size) > 0, 0)
    code = changing.tasks.code.copy()
    np.subtract.at(code, removal.calls, removal.code)
    changing.tasks = replace(changing.tasks, code=np.maximum(code, 0))


def asynchronous(changing: Changing, copies: tuple[Rows, Rows, Ints], after: Removal) -> None:
    """Copies no longer block: calls, work and how long it takes at most; ``after`` goes, which waited for them."""
    calls, work, lasts = copies
    changing.without_waiting(counts(calls, changing.blocks.size) > 0, changing.usual_launch)
    without(changing, after)
    changed = changing.tasks.lasts.copy()
    changed[work] = np.minimum(changed[work], lasts)
    changing.tasks = replace(changing.tasks, lasts=changed)


def shortened(changing: Changing, work: Floats, calls: Floats) -> None:
    """Work, and CUDA calls with the code before them, take a share of their time each."""
    tasks = changing.tasks
    times = zip((tasks.lasts, tasks.takes, tasks.code), (work, calls, calls), strict=True)
    lasts, takes, code = (np.rint(time * share).astype(np.int64) for time, share in times)
    changing.tasks = replace(tasks, lasts=lasts, takes=takes, code=np.where(tasks.previous >= 0, code, tasks.code))


def without_code(changing: Changing, stretches: Stretches) -> None:
    """The code between CUDA calls in some stretches of threads takes no time."""
    changing.tasks = replace(changing.tasks, code=changing.tasks.code - code_in(changing, stretches))


def code_in(changing: Changing, stretches: Stretches) -> Ints:
    """How much of the code before each CUDA call lies in some stretches of threads."""
    pairs, events = [], changing.found.events
    for thread in np.unique(stretches.thread).tolist():
        own = stretches.thread == thread
        time = covered(stretches.start[own], stretches.end[own])
        pairs.append((np.flatnonzero(events.thread == thread), time))
    return changing.code_in(pairs)
