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


class Spans(NamedTuple):
    """Calls of modules: thread, times on the clock of the model, and module."""

    thread: Rows
    start: Ints
    end: Ints
    module: Rows


def matched(pattern: str, modules: Hierarchy) -> Flags:
    """Which modules a pattern names (or a UsageError if none), with all below them; the last one is for no module."""
    wanted = Pattern(pattern)
    chosen = np.array([*wanted.inside(modules.path), pattern == _EVERYTHING])
    if not chosen.any():
        close = wanted.closest(modules.path)
        remedy = f"did you mean {close}?" if close else "tracekit show modules lists the paths; *.NAME is any of them"
        raise UsageError(f"no module matches {pattern!r}; {remedy}")
    return chosen


class Changing:
    """The tasks of a report, changed one after the other; ``extreme`` is -1 or 1 for the least or most of unknowns."""

    def __init__(self, found: Recorded, tasks: Tasks, modules: Hierarchy, spans: Spans, *, extreme: int) -> None:
        self.found, self.tasks, self.modules, self.calls = found, tasks, modules, spans
        self._extreme = extreme
        #: Which CUDA calls still block, and which of them keep calls of modules from being graphs.
        self.blocks = found.events.blocks
        self.preventing = np.zeros(self.blocks.size, dtype=bool)

    def apply(self, changes: Changes) -> Tasks:
        """All changes."""
        for pattern, factor in changes.scale:
            self._scale(pattern, factor)
        for pattern, factor in changes.host_scale:
            chosen, code = matched(pattern, self.modules), self.tasks.code
            everywhere = np.where(self.tasks.previous >= 0, code, 0)
            inside = everywhere if chosen[-1] else self.code_in(self._by_thread(chosen))
            self.tasks = replace(self.tasks, code=code - inside + _scaled(inside, factor))
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
            self.tasks = replace(self.tasks, meeting=np.full(self.tasks.meeting.size, -1))
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
        lasts = np.where(chosen, _scaled(self.tasks.lasts, factor), self.tasks.lasts)
        self.tasks = replace(self.tasks, lasts=lasts)

    def code_in(self, stretches: list[tuple[Rows, Covered]]) -> Ints:
        """How much of the code before each CUDA call lies in stretches of threads: the calls there, and when."""
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
        tasks, work = self.tasks, self.found.work
        gone = self.found.events.ended_by_work & self.calls_of(chosen)
        pinned = work.pinned[:, 0 if self._extreme < 0 else 1] / np.maximum(work.end - work.start, 1)
        copied = (pinned < 1) & lookup(gone, tasks.event, 0).astype(bool)
        self.without_waiting(gone, np.where(self._launching(), self.usual_launch, 0))
        self.tasks = replace(self.tasks, lasts=np.where(copied, _scaled(tasks.lasts, pinned), tasks.lasts))

    def _launching(self, chosen: Flags | None = None) -> Flags:
        """Which calls launch work, or some of it."""
        return counts(self.tasks.event if chosen is None else self.tasks.event[chosen], self.blocks.size) > 0

    @property
    def usual_launch(self) -> int:
        """How long calls take that launch work and do not block."""
        return median(self.tasks.takes[self._launching() & ~self.found.events.blocks])

    @property
    def _starts_after(self) -> int:
        """How long after its call returned work usually starts at least."""
        return median(self.tasks.launch[(self.tasks.event >= 0) & ~self.tasks.early])

    def without_waiting(self, gone: Flags, takes: Ints | int) -> None:
        """Calls no longer wait for anything, and take so long, but not longer than they did."""
        tasks, events = self.tasks, self.found.events
        calls, awaited, after = tasks.awaited
        kept = ~gone[calls]
        self.blocks = self.blocks & ~gone
        self.tasks = replace(
            tasks,
            takes=np.where(gone, np.minimum(takes, events.end - events.start), tasks.takes),
            waits_for=np.where(gone, -1, tasks.waits_for),
            awaited=(calls[kept], awaited[kept], after[kept]),
        )

    def _no_launch_cost(self, chosen: Flags) -> None:
        tasks = self.tasks
        free = ~self.blocks & self.calls_of(chosen)
        early = tasks.early & lookup(free, tasks.event, 0).astype(bool)
        launch = np.where(early, np.minimum(tasks.launch, self._starts_after), tasks.launch)
        self.tasks = replace(tasks, takes=np.where(free, 0, tasks.takes), launch=launch)

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
        once = median(tasks.takes[self._launching(self.found.work.from_replay)]) or self.usual_launch
        moved = lookup(member, tasks.event, 0).astype(bool)
        follows = moved & (tasks.before >= 0) & moved[tasks.before] & (tasks.order < HELD_NS)
        at_once = moved & (tasks.launch < HELD_NS)
        self.without_waiting(member, 0)
        self.tasks = replace(
            self.tasks,
            code=tasks.code - self.code_in(by_thread),
            takes=np.where(leads, once, self.tasks.takes),
            event=np.where(moved, np.append(leader, -1)[tasks.event], tasks.event),
            early=tasks.early & (~moved | leads[tasks.event]),  # work that starts before its call returns still does
            launch=np.where(at_once, np.minimum(tasks.launch, self._starts_after), tasks.launch),
            order=np.where(follows, np.minimum(tasks.order, tasks.node_after[self._extreme > 0]), tasks.order),
        )

    def overlap_communication(self) -> None:
        """Nothing waits for collectives, neither behind them on their stream nor by an event, but the next step."""
        tasks, collective = self.tasks, self.found.work.collective
        before = tasks.before.copy()
        while (behind := (before >= 0) & np.append(collective, False)[before] & ~collective).any():
            before = np.where(behind, np.append(tasks.before, -1)[before], before)
        one, other, lag = tasks.dependent
        kept = ~collective[other] | collective[one]
        # Collectives still wait for the ones before them on their streams.
        rows = np.flatnonzero(collective)
        rows = rows[np.argsort(self.found.work.stream[rows], kind="stable")]
        same = self.found.work.stream[rows[1:]] == self.found.work.stream[rows[:-1]]
        in_a_row = rows[1:][same], rows[:-1][same]
        works, others = np.concatenate([in_a_row, self._next_steps()], axis=1)
        known = tasks.order_of.end(tasks.meeting)[others] < tasks.order_of.start[works]
        one, other = np.append(one[kept], works[known]), np.append(other[kept], others[known])
        lag = np.append(lag[kept], np.zeros(np.count_nonzero(known), np.int64))
        self.tasks = replace(tasks, before=before, dependent=(one, other, lag))

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


def shortened(changing: Changing, work: Floats, calls: Floats | float = 1.0) -> None:
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
