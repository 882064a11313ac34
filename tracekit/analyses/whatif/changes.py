"""Changes to a step, as changes of its model: what takes less time, what no longer waits, what is launched at once.

A pattern names modules part by part: ``*`` is one part, and so may be within one (``layers.*.mlp``, ``*_proj``). It may
begin anywhere in a path, and stands for the modules below, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from tracekit.analyses.subtrees import Hierarchy
from tracekit.analyses.whatif.model import Tasks
from tracekit.analyses.whatif.recorded import Recorded
from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import covered
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.errors import UsageError

_KERNEL = ":kernel="


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What would be changed; several at once are applied in this order.

    Attributes:
        scale: Device time: pairs of a pattern, which may end in ``:kernel=PATTERN`` for names of kernels, and a factor.
        host_scale: Code on the host, without calls of CUDA.
        no_sync: Modules whose calls no longer block: waits disappear, copies become asynchronous.
        no_launch_cost: Modules whose calls of CUDA that do not block take no time.
        as_graph: Modules of which each call launches its work as one CUDA graph.
        overlap_communication: Whether nothing waits for collectives but the next step.
        interconnect: How many times as fast collectives move their data.
        like_fastest_rank: Whether no rank waits for another.
    """

    scale: tuple[tuple[str, float], ...] = ()
    host_scale: tuple[tuple[str, float], ...] = ()
    no_sync: tuple[str, ...] = ()
    no_launch_cost: tuple[str, ...] = ()
    as_graph: tuple[str, ...] = ()
    overlap_communication: bool = False
    interconnect: float | None = None
    like_fastest_rank: bool = False


class Spans(NamedTuple):
    """Calls of modules: thread, times on the clock of the model, and module."""

    thread: Rows
    start: Ints
    end: Ints
    module: Rows


def matched(pattern: str, modules: Hierarchy) -> Flags:
    """Which modules a pattern names, with all below them; the last one is for no module.

    Raises:
        UsageError: If it names none.
    """
    parts = pattern.split(".")
    if pattern == "*":
        return np.ones(len(modules.path) + 1, dtype=bool)
    found = np.zeros(len(modules.path) + 1, dtype=bool)
    for row in range(len(modules.path)):
        own = modules.path[row].split(".")[-len(parts) :]
        if len(own) == len(parts) and all(map(fnmatchcase, own, parts)):
            found[row : int(modules.end[row])] = True
    if not found.any():
        raise UsageError(f"no module matches {pattern}; tracekit show modules lists the paths")
    return found


class Changing:
    """The tasks of a report, changed one after the other."""

    def __init__(self, found: Recorded, tasks: Tasks, modules: Hierarchy, spans: Spans) -> None:
        self.found, self.tasks, self.modules, self._calls = found, tasks, modules, spans

    def apply(self, changes: Changes) -> Tasks:
        """All changes."""
        for pattern, factor in changes.scale:
            self._scale(pattern, factor)
        for pattern, factor in changes.host_scale:
            self._host_scale(pattern, factor)
        for patterns, change in (
            (changes.no_sync, self._no_sync),
            (changes.no_launch_cost, self._no_launch_cost),
            (changes.as_graph, self._as_graph),
        ):
            for pattern in patterns:
                change(matched(pattern, self.modules))
        if changes.interconnect is not None:
            self._of_collectives(1 / changes.interconnect)
        if changes.like_fastest_rank:
            self.tasks = replace(self.tasks, meeting=np.full(self.tasks.meeting.size, -1))
        if changes.overlap_communication:
            self._overlap_communication()
        return self.tasks

    def _scale(self, pattern: str, factor: float) -> None:
        path, _, name = pattern.partition(_KERNEL)
        work = self.found.work
        chosen = matched(path, self.modules)[work.module]
        if name:
            fits = np.array([fnmatchcase(word, name) for word in work.names] + [False])
            chosen &= fits[work.name]
        self.tasks = replace(self.tasks, lasts=np.where(chosen, _scaled(self.tasks.lasts, factor), self.tasks.lasts))

    def _of_collectives(self, factor: float) -> None:
        lasts = np.where(self.found.work.collective, _scaled(self.tasks.lasts, factor), self.tasks.lasts)
        self.tasks = replace(self.tasks, lasts=lasts)

    def _host_scale(self, pattern: str, factor: float) -> None:
        chosen = matched(pattern, self.modules)
        events = self.found.events
        first = _first_of_threads(events.thread)
        begin = np.where(first, events.start, np.append(0, events.end[:-1]))
        inside = np.zeros(events.start.size, dtype=np.int64)
        threads, start, end = self._spans(chosen)
        for thread in np.unique(events.thread).tolist():
            rows, own = np.flatnonzero(events.thread == thread), threads == thread
            time = covered(start[own], end[own])
            inside[rows] = time.until(events.start[rows]) - time.until(begin[rows])
        self.tasks = replace(self.tasks, code=self.tasks.code - inside + _scaled(inside, factor))

    def _spans(self, chosen: Flags) -> tuple[Rows, Ints, Ints]:
        """The thread, start and end of calls of modules."""
        rows = np.flatnonzero(chosen[self._calls.module])
        return self._calls.thread[rows], self._calls.start[rows], self._calls.end[rows]

    def _no_sync(self, chosen: Flags) -> None:
        tasks, events = self.tasks, self.found.events
        gone = events.blocks & chosen[events.module] & (tasks.waits_for >= 0)
        started = np.zeros(gone.size + 1, dtype=bool)
        started[tasks.event] = True
        copies = gone & started[:-1]
        usual = _usual(tasks.takes[started[:-1] & ~events.blocks])
        takes = np.where(copies, usual, np.where(gone, 0, tasks.takes))
        waits_for = np.where(gone, -1, tasks.waits_for)
        kept = ~gone[tasks.awaited[0]]
        awaited = tasks.awaited[0][kept], tasks.awaited[1][kept]
        self.tasks = replace(tasks, takes=takes, waits_for=waits_for, awaited=awaited)

    def _no_launch_cost(self, chosen: Flags) -> None:
        tasks, events = self.tasks, self.found.events
        free = ~events.blocks & chosen[events.module]
        launch = np.where(tasks.early & lookup(free, tasks.event, 0).astype(bool), 0, tasks.launch)
        self.tasks = replace(tasks, takes=np.where(free, 0, tasks.takes), launch=launch)

    def _as_graph(self, chosen: Flags) -> None:
        """Of the calls of CUDA in each outermost call only the first remains, and code between them goes."""
        tasks, events = self.tasks, self.found.events
        threads, start, end = self._spans(chosen)
        takes, code, event = tasks.takes.copy(), tasks.code.copy(), tasks.event.copy()
        graph = np.full(events.start.size, -1)
        for thread in np.unique(events.thread).tolist():
            rows = np.flatnonzero((events.thread == thread) & ~events.blocks)
            own = threads == thread
            time = covered(start[own], end[own])
            at = np.searchsorted(time.start, events.start[rows], side="right") - 1
            inside = (at >= 0) & (events.start[rows] < np.append(time.end, 0)[at])
            graph[rows[inside]] = at[inside] + 1 + int(graph.max(initial=-1))
        members = np.flatnonzero(graph >= 0)
        _, lead = np.unique(graph[members], return_index=True)
        leads = members[lead]
        leader = np.full(events.start.size, -1)
        leader[members] = leads[np.unique(graph[members], return_inverse=True)[1]]
        follows = (leader >= 0) & (leader != np.arange(leader.size))
        takes[follows], code[follows] = 0, 0
        moved = lookup(follows, event, 0).astype(bool)
        event[moved] = leader[event[moved]]
        usual = _usual(tasks.order[tasks.before >= 0])
        launch = np.where(moved, np.minimum(tasks.launch, usual), tasks.launch)
        order = np.where(moved, np.minimum(tasks.order, usual), tasks.order)
        self.tasks = replace(tasks, takes=takes, code=code, event=event, launch=launch, order=order)

    def _overlap_communication(self) -> None:
        """Nothing waits for collectives, neither behind them on their stream nor by an event."""
        tasks, collective = self.tasks, self.found.work.collective
        before = tasks.before.copy()
        while (behind := (before >= 0) & np.append(collective, False)[before] & ~collective).any():
            before = np.where(behind, np.append(tasks.before, -1)[before], before)
        one, other, lag = tasks.dependent
        kept = ~collective[other] | collective[one]
        self.tasks = replace(tasks, before=before, dependent=(one[kept], other[kept], lag[kept]))


def _first_of_threads(thread: Rows) -> Flags:
    return np.append(True, thread[1:] != thread[:-1])[: thread.size]


def _scaled(values: Ints, factor: float) -> Ints:
    scaled: Ints = np.rint(values * factor).astype(np.int64)
    return scaled


def _usual(values: Ints) -> int:
    return int(np.median(values)) if values.size else 0
