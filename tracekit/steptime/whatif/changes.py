"""Changes to a step, as changes of its model: what takes less time, what no longer waits, what is launched at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, grouped, minima
from tracekit.arrays.intervals import Covered, covered, nesting_order
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.dataset.patterns import Pattern
from tracekit.errors import UsageError
from tracekit.steptime.timeline import Spans
from tracekit.steptime.whatif.model import Tasks, latest, median
from tracekit.steptime.whatif.recorded import Recorded

KERNEL = ":kernel="
_EVERYTHING = "*"
_MOST = 1e6  # with larger factors times would have no room in 64 bits
#: Work that begins so much later than all that it is known to wait for was held by something that is not recorded.
HELD_NS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What would be changed; several at once are applied in this order.

    A *pattern* is a :class:`~tracekit.dataset.patterns.Pattern` of paths. What it names includes all modules below.
    ``*`` alone is everything, also what is outside of modules.

    Attributes:
        scale: Device time: pairs of a pattern, which may end in ``:kernel=GLOB`` for names of kernels, and a factor. Of
            a collective only the part after its last rank arrived, where all ranks are known.
        host_scale: Code on the host, without CUDA calls: pairs of a pattern and a factor.
        no_sync: Patterns of modules whose calls no longer wait for the device: synchronization disappears, and blocking
            copies become asynchronous.
        no_launch_cost: Patterns of modules whose CUDA calls take no time, except those that block.
        as_graph: Patterns of modules of which each call launches its work as one CUDA graph: what the host did in it
            becomes one launch. Calls in which something still waits for the device stay as they are: that prevents a
            graph capture (see ``no_sync``).
        overlap_communication: Whether only the next step waits for collectives, and no other work.
        interconnect: How many times as fast collectives move their data.
        like_fastest_rank: Whether all ranks take as long as the fastest one, so that none waits for another.
    """

    scale: tuple[tuple[str, float], ...] = ()
    host_scale: tuple[tuple[str, float], ...] = ()
    no_sync: tuple[str, ...] = ()
    no_launch_cost: tuple[str, ...] = ()
    as_graph: tuple[str, ...] = ()
    overlap_communication: bool = False
    interconnect: float | None = None
    like_fastest_rank: bool = False

    def __post_init__(self) -> None:
        for _, factor in (*self.scale, *self.host_scale):
            if not 0 <= factor <= _MOST:
                raise UsageError(f"{factor} is no factor; expected a number from 0 to a million, such as 0.5")
        if self.interconnect is not None and not 1 / _MOST <= self.interconnect <= _MOST:
            raise UsageError(f"{self.interconnect} is no factor; expected one from a millionth to a million, such as 2")


def matched(pattern: str, modules: Hierarchy) -> Flags:
    """Which modules a pattern names (or a UsageError if none), with all below them; the last one is for no module."""
    wanted = Pattern(pattern)
    chosen = np.array([*wanted.inside(modules.path), pattern == _EVERYTHING])
    if not chosen.any():
        close = wanted.closest(modules.path)
        remedy = f"did you mean {close}?" if close else "tracekit show modules lists the paths; *.NAME is any of them"
        raise UsageError(f"no module matches {pattern!r}; {remedy}")
    return chosen


class Removal(NamedTuple):
    """CUDA calls that no longer happen, how much of the code before each goes too, work, and the time of it all."""

    calls: Rows
    code: Ints
    work: Rows
    ns: int


class Changing:
    """The tasks of a report, changed one after the other; ``extreme`` is -1 or 1 for the least or most of unknowns."""

    def __init__(self, found: Recorded, tasks: Tasks, modules: Hierarchy, calls: Spans, *, extreme: int) -> None:
        self.found, self.tasks, self.modules, self.calls = found, replace(tasks), modules, calls
        self._extreme = extreme
        #: Which CUDA calls still block, and which of them keep calls of modules from being graphs.
        self.blocks = found.events.blocks
        self.preventing = np.zeros(self.blocks.size, dtype=bool)

    def apply(self, changes: Changes) -> Tasks:
        """All changes."""
        for pattern, factor in changes.scale:
            self._scale(pattern, factor)
        for pattern, factor in changes.host_scale:
            chosen = matched(pattern, self.modules)
            everywhere = np.where(self.tasks.previous >= 0, self.tasks.code, 0)
            inside = everywhere if chosen[-1] else self._code_in(self._by_thread(chosen))
            self.tasks.code = self.tasks.code - inside + _scaled(inside, factor)
        for patterns, change in (
            (changes.no_sync, self._no_sync),
            (changes.no_launch_cost, self._no_launch_cost),
            (changes.as_graph, self.as_graph),
        ):
            for pattern in patterns:
                change(matched(pattern, self.modules))
        if changes.interconnect is not None:
            self._of_work(self.found.work.collective, 1 / changes.interconnect)
        if changes.like_fastest_rank:
            self.without_meetings()
        if changes.overlap_communication:
            self.overlap_communication()
        return self.tasks

    def _scale(self, pattern: str, factor: float) -> None:
        path, _, name = pattern.partition(KERNEL)
        work = self.found.work
        chosen = matched(path, self.modules)[work.module]
        if name:
            fits = np.array([fnmatchcase(word, name) for word in work.names] + [False])
            if not fits.any():
                raise UsageError(f"no kernel matches {name!r}; tracekit show kernels lists the names")
            chosen &= fits[work.name]
        self._of_work(chosen, factor)

    def _of_work(self, chosen: Flags, factor: float) -> None:
        self.tasks.lasts = np.where(chosen, _scaled(self.tasks.lasts, factor), self.tasks.lasts)

    def without_meetings(self) -> None:
        """No rank waits for others in collectives."""
        self.tasks.meeting = np.full(self.tasks.meeting.size, -1)

    def code_in(self, stretches: Spans) -> Ints:
        """How much of the code before each CUDA call lies in some stretches of threads."""
        pairs = []
        for thread in np.unique(stretches.thread).tolist():
            own = stretches.thread == thread
            time = covered(stretches.start[own], stretches.end[own])
            pairs.append((np.flatnonzero(self.found.events.thread == thread), time))
        return self._code_in(pairs)

    def _code_in(self, stretches: list[tuple[Rows, Covered]]) -> Ints:
        """As :meth:`code_in`, given the CUDA calls of each thread and its stretches."""
        events, previous = self.found.events, self.tasks.previous
        begin = lookup(events.end, previous)
        inside = np.zeros(events.start.size, dtype=np.int64)
        for of_thread, time in stretches:
            # A thread may go on where another one stopped: code of both is between the two calls.
            mine = counts(of_thread, inside.size) > 0
            rows = np.flatnonzero((previous >= 0) & (mine | mine[previous]))
            inside[rows] += np.maximum(0, time.until(events.start[rows]) - time.until(begin[rows]))
        return np.minimum(inside, self.tasks.code)

    def _by_thread(self, chosen: Flags, prevents: Flags | None = None) -> list[tuple[Rows, Covered]]:
        """The CUDA calls of each thread, and the outermost calls of modules there in which none prevents them."""
        own = np.flatnonzero(chosen[self.calls.module])
        threads, start, end, _ = (column[own] for column in self.calls)
        pairs = []
        for number in np.unique(threads).tolist():
            low, high = np.searchsorted(self.found.events.thread, (number, number + 1))
            at = np.flatnonzero(threads == number)
            rows, time = np.arange(low, high), _outermost(start[at], end[at])
            if prevents is not None:
                within = np.where(prevents[low:high], _span_of(time, self.found.events.start[low:high]), -1)
                self.preventing[rows[within >= 0]] = True
                kept = np.setdiff1d(np.arange(time.start.size), within)
                time = _outermost(time.start[kept], time.end[kept])
            pairs.append((rows, time))
        return pairs

    def calls_of(self, chosen: Flags) -> Flags:
        """Which CUDA calls modules made."""
        events = self.found.events
        made = chosen[events.module]
        for rows, time in self._by_thread(chosen):
            made[rows] |= _span_of(time, events.start[rows]) >= 0
        return made

    def _no_sync(self, chosen: Flags) -> None:
        self.without_sync(self.found.events.ended_by_work & self.calls_of(chosen), 0 if self._extreme < 0 else 1)

    def without_sync(self, gone: Flags, most: int = 0) -> None:
        """Calls no longer wait for the device; copies take as long as those of pinned memory at least, or at most."""
        tasks, work = self.tasks, self.found.work
        pinned = work.pinned[:, most] / np.maximum(work.end - work.start, 1)
        copied = (pinned < 1) & lookup(gone, tasks.event, 0).astype(bool)
        self.without_waiting(gone, np.where(self._launching(), self._usual_launch, 0))
        tasks.lasts = np.where(copied, _scaled(tasks.lasts, pinned), tasks.lasts)

    def _launching(self, chosen: Flags | None = None) -> Flags:
        """Which calls launch work, or some of it."""
        return counts(self.tasks.event if chosen is None else self.tasks.event[chosen], self.blocks.size) > 0

    @property
    def _usual_launch(self) -> int:
        """How long calls take that launch work and do not block."""
        return median(self.tasks.takes[self._launching() & ~self.found.events.blocks])

    @property
    def _starts_after(self) -> int:
        """How long after its call returned work usually starts at least."""
        return median(self.tasks.launch[(self.tasks.event >= 0) & ~self.tasks.early])

    def without_waiting(self, gone: Flags, takes: Ints | int) -> None:
        """Calls no longer wait for anything, and take so long, but not longer than they did."""
        tasks, events = self.tasks, self.found.events
        self.blocks = self.blocks & ~gone
        tasks.takes = np.where(gone, np.minimum(takes, events.end - events.start), tasks.takes)
        tasks.awaited = tasks.awaited.at(~gone[tasks.awaited.row])

    def _no_launch_cost(self, chosen: Flags) -> None:
        tasks = self.tasks
        free = ~self.blocks & self.calls_of(chosen)
        early = tasks.early & lookup(free, tasks.event, 0).astype(bool)
        tasks.launch = np.where(early, np.minimum(tasks.launch, self._starts_after), tasks.launch)
        tasks.takes = np.where(free, 0, tasks.takes)

    def as_graph(self, chosen: Flags) -> None:
        """One launch remains of the CUDA calls in each outermost call in which none waits for work, and no code."""
        leader, start = np.full(self.blocks.size, -1), self.found.events.start
        by_thread = self._by_thread(chosen, self.blocks & self.found.events.ended_by_work)
        for rows, time in by_thread:
            at = _span_of(time, start[rows])
            inside = np.flatnonzero(at >= 0)
            number = np.unique(at[inside], return_index=True, return_inverse=True)
            leader[rows[inside]] = rows[inside][number[1]][number[2]]
        tasks, leads, member = self.tasks, leader == np.arange(leader.size), leader >= 0
        once = median(tasks.takes[self._launching(self.found.work.from_replay)]) or self._usual_launch
        moved = lookup(member, tasks.event, 0).astype(bool)
        follows = moved & (tasks.before >= 0) & moved[tasks.before] & (tasks.order < HELD_NS)
        at_once = moved & (tasks.launch < HELD_NS)
        code, starts_after = self._code_in(by_thread), self._starts_after
        self.without_waiting(member, 0)
        tasks.code = tasks.code - code
        tasks.takes = np.where(leads, once, tasks.takes)
        tasks.early = tasks.early & (~moved | leads[tasks.event])  # work that starts before its call returns still does
        tasks.event = np.where(moved, np.append(leader, -1)[tasks.event], tasks.event)
        tasks.launch = np.where(at_once, np.minimum(tasks.launch, starts_after), tasks.launch)
        tasks.order = np.where(follows, np.minimum(tasks.order, tasks.node_after[self._extreme > 0]), tasks.order)

    def overlap_communication(self) -> None:
        """Nothing waits for collectives, neither behind them on their stream nor by an event, but the next step."""
        tasks, collective = self.tasks, self.found.work.collective
        before = tasks.before.copy()
        while (behind := (before >= 0) & np.append(collective, False)[before] & ~collective).any():
            before = np.where(behind, np.append(tasks.before, -1)[before], before)
        tasks.before = before
        tasks.dependent = tasks.dependent.at(~collective[tasks.dependent.work] | collective[tasks.dependent.row])
        # Collectives still wait for the ones before them on their streams.
        rows = np.flatnonzero(collective)
        rows = rows[np.argsort(self.found.work.stream[rows], kind="stable")]
        same = self.found.work.stream[rows[1:]] == self.found.work.stream[rows[:-1]]
        tasks.depend(rows[1:][same], rows[:-1][same])
        tasks.depend(*self._next_steps())

    def _next_steps(self) -> tuple[Rows, Rows]:
        """The first work of each step on every stream of a device, and the last collectives before the step there."""
        work = self.found.work
        rows = np.flatnonzero(work.step >= 0)
        first = rows[grouped((work.line[rows], work.step[rows], work.stream[rows]))[1]]
        step, begin = grouped((work.line[first], work.step[first]))
        begun = minima(step, work.start[first], begin.size)[step]
        rows = np.flatnonzero(work.collective)
        groups = work.line[rows], work.line[first]
        place, others = latest(groups, work.stream[rows], work.start[rows], begun)
        return first[place], rows[others]

    def without(self, removal: Removal) -> None:
        """Calls and work no longer happen: what waited for them waits for what was before them on their streams."""
        tasks, gone = self.tasks, counts(removal.work, self.tasks.lasts.size) > 0
        instead = np.arange(gone.size)
        while (rows := np.flatnonzero((instead >= 0) & gone[instead])).size:
            instead[rows] = tasks.before[instead[rows]]
        tasks.lasts = np.where(gone, 0, tasks.lasts)
        tasks.before = lookup(instead, tasks.before)
        tasks.meeting = np.where(gone, -1, tasks.meeting)
        tasks.dependent = tasks.dependent.at(~gone[tasks.dependent.row]).instead(instead)
        tasks.awaited = tasks.awaited.instead(instead)
        self.without_waiting(counts(removal.calls, tasks.takes.size) > 0, 0)
        code = tasks.code.copy()
        np.subtract.at(code, removal.calls, removal.code)
        tasks.code = np.maximum(code, 0)

    def shortened(self, work: Floats, calls: Floats | float = 1.0) -> None:
        """Work, and CUDA calls with the code before them, take a share of their time each."""
        tasks = self.tasks
        tasks.lasts, tasks.takes = _scaled(tasks.lasts, work), _scaled(tasks.takes, calls)
        tasks.code = np.where(tasks.previous >= 0, _scaled(tasks.code, calls), tasks.code)

    def without_code(self, stretches: Spans) -> None:
        """The code between CUDA calls in some stretches of threads takes no time."""
        self.tasks.code = self.tasks.code - self.code_in(stretches)


def _outermost(start: Ints, end: Ints) -> Covered:
    """The intervals that lie in no other one."""
    order = nesting_order(start, end)
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    outermost = np.append(True, start[1:] >= reached[:-1])[: start.size]
    start, end = start[outermost], end[outermost]
    return Covered(start, end, np.cumsum(end - start) - (end - start))


def _span_of(time: Covered, at: Ints) -> Rows:
    """The stretch around each time, or -1."""
    row = np.searchsorted(time.start, at, side="right") - 1
    return np.where((row >= 0) & (at < np.append(time.end, 0)[row]), row, -1)


def _scaled(values: Ints, factor: float | Floats) -> Ints:
    scaled: Ints = np.rint(values * factor).astype(np.int64)
    return scaled


Edit: TypeAlias = Callable[[Changing], None]
