"""What a hierarchy is keyed by (modules, plain ranges or operators), which ranges are its nodes, from when to when.

Ranges of one domain that are pushed and popped nest by themselves. One that was never popped is believed only until its
thread contradicts it: until the range around it ends, or the next range of its place begins. Start/end ranges may
overlap others in part; the one that began last counts, and a range that is popped counts whole, as calls of modules do.
"""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import agreed, grouped, sums
from tracekit.arrays.intervals import ancestors, by_level, highest, innermost, nesting_order, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import RANGES_OVERLAP
from tracekit.markers.base import (
    AUTO,
    MODULES,
    OPERATOR,
    OPERATORS,
    RANGE,
    RANGES,
    REGION,
    CompiledGraphMarker,
    KernelMapMarker,
    Marker,
    ModuleMarker,
    Shapes,
    StepMarker,
    Unreadable,
)
from tracekit.markers.plain import ITERATION_CANDIDATES, is_library
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import PUSH_POP, Recording
from tracekit.trace.autograd_nodes import AutogradNodes
from tracekit.trace.decoding import Decoded
from tracekit.trace.hierarchy.mapped_modules import NO_RUNS, MappedRuns
from tracekit.trace.hierarchy.module_paths import part
from tracekit.trace.operators import Operators
from tracekit.trace.range_names import Names, names_of, short_names, stack_lines

_LAST = np.iinfo(np.int64).max
_DIGITS = re.compile(r"\d+")


class Extents(NamedTuple):
    """Ranges that nest, by (start, -end)."""

    row: Rows
    start: Ints
    end: Ints


_NOTHING = Extents(*(np.empty(0, dtype=np.int64) for _ in range(3)))


def _extents_of(
    recording: Recording, axis: ThreadAxis, rows: Rows, place: Ints, calls: Extents
) -> tuple[Extents, dict[int, int]]:
    """Where some ranges begin and end so that they nest, and ``HierarchyKey.siblings``."""
    start, end = axis.range_start[rows], axis.range_end[rows].copy()
    never_ended = recording.ranges.open[rows]
    popped = (recording.ranges.kind[rows] == PUSH_POP) & ~never_ended
    if popped.all():
        return Extents(rows, start, end), {}
    loose = np.flatnonzero(~popped)
    # One that never ended does so when the next of its place begins.
    in_place = np.lexsort((start, place))
    follows = np.full(start.size, _LAST)
    same = place[in_place[1:]] == place[in_place[:-1]]
    follows[in_place[:-1][same]] = start[in_place[1:][same]]
    end[never_ended] = np.minimum(end, follows)[never_ended]
    whole_start, whole_end = np.append(start[popped], calls.start), np.append(end[popped], calls.end)
    order = nesting_order(whole_start, whole_end)
    end[loose] = _nested_in(whole_start[order], whole_end[order], start[loose], end[loose])
    end[loose], group = _apart_from_each_other(start[loose], end[loose], place[loose].tolist())
    order = nesting_order(start, end)
    kind = recording.ranges.kind[rows[loose]]
    siblings = {row: own for row, own, of in zip(rows[loose].tolist(), group, kind, strict=True) if of != PUSH_POP}
    return Extents(rows[order], start[order], end[order]), siblings


def _nested_in(start: Ints, end: Ints, first: Ints, last: Ints) -> Ints:
    """When each of some intervals ends at the latest so that it lies in, around or next to those that count whole."""
    parent, _ = parents(start, end)
    leaps = ancestors(parent)
    around = innermost(start, end, parent, first, first)
    # A range that began at the very same time and is shorter lies inside.
    inside = highest(leaps, around, lambda at, row: (start[at] == first[row]) & (end[at] < last[row]))
    around = np.where(inside >= 0, lookup(parent, inside), around)
    last = np.where(around >= 0, np.minimum(lookup(end, around), last), last)
    # A range that began inside and outlasts the interval ends it: the outermost of these.
    across = innermost(start, end, parent, last, last)
    over = highest(leaps, across, lambda at, row: end[at] <= last[row])
    across = np.where(over >= 0, lookup(parent, over), across)
    across = highest(leaps, across, lambda at, row: start[at] > first[row])
    return np.where(across >= 0, np.minimum(lookup(start, across), last), last)


def _apart_from_each_other(start: Ints, end: Ints, place: list[int]) -> tuple[Ints, list[int]]:
    """The ends of loose intervals, each cut where a later one begins that outlasts it; and for each a group of places.

    Places of which intervals overlap in part are siblings, in one group, also where one lies inside another by chance.
    """
    end = end.copy()
    starts, ends = start.tolist(), end.tolist()
    group = {number: number for number in place}
    pending: list[int] = []
    for row in nesting_order(start, end).tolist():
        while pending and ends[pending[-1]] < ends[row]:
            last = pending.pop()
            if ends[last] > starts[row]:
                ends[last] = starts[row]
                group[_group(group, place[last])] = _group(group, place[row])
        pending.append(row)
    return np.array(ends, dtype=np.int64), [_group(group, number) for number in place]


def _group(group: dict[int, int], number: int) -> int:
    while (above := group[number]) != number:
        group[number] = number = group[above]
    return number


class HierarchyKey(NamedTuple):
    """The nodes of a hierarchy among the ranges of a recording.

    Attributes:
        by: What it is keyed by: one of ``HIERARCHIES`` but the first.
        cut: Rows of start/end ranges that end, as nodes, before they ended.
        siblings: For rows of start/end ranges a group, whose ranges are never part of each other.
        step_parts: Of ranges that count as steps do that are open meanwhile on other threads, the row of the range of
            that step; -1 if none has their number. By rows of ranges.
        runs: Runs of compiled graphs, whose maps name modules that are nodes, too.
        nodes: The nodes of autograd that ran, where ranges or operators are the nodes of the hierarchy; None if nothing
            identifies who made them.
        autograd: Rows of the threads that run backward passes for others.
    """

    by: str
    decoded: Decoded
    extents: Extents
    marker: Rows
    cut: Rows
    siblings: dict[int, int]
    steps: Extents
    step_markers: list[StepMarker]
    step_parts: dict[int, int]
    runs: MappedRuns = NO_RUNS
    nodes: AutogradNodes | None = None
    autograd: Rows = np.empty(0, dtype=np.int64)

    @property
    def modules_alone(self) -> "HierarchyKey":
        """The same markers, with modules as the only nodes."""
        return _modules(self.decoded)

    @property
    def with_modules(self) -> bool:
        """Whether ranges with module markers are nodes."""
        return self.by != OPERATORS


class Work(NamedTuple):
    """Ranges and launches of threads on one axis, and how long the work of each launch took."""

    axis: ThreadAxis
    launch_ns: Ints

    def inside(self, start: Ints, end: Ints) -> Ints:
        """How long all work took that was launched in each of some intervals."""
        begin, stop = (np.searchsorted(self.axis.launch_start, times) for times in (start, end))
        total = np.append(0, np.cumsum(self.launch_ns))
        return np.asarray(total[stop] - total[begin])


def choose_hierarchy(
    by: str, recording: Recording, decoded: Decoded, work: Work, ends: Ints, operators: Operators
) -> HierarchyKey:
    """Chooses the nodes: ``auto`` takes the first that the report has: modules, plain ranges, operators."""
    axis = work.axis
    if by == AUTO and (not len(recording.ranges) or bool(decoded.ranges(recording, ModuleMarker).any())):
        by = MODULES
    if by == MODULES:
        return _with_iterations(_modules(decoded), recording, work, operators)
    marker = np.append(decoded.of_text, -1)[recording.ranges.text]
    ranges = _ranges(recording, decoded, marker, operators)
    if by == AUTO:
        plain = ~(ranges.called | ranges.operator | ranges.library | ranges.mapping) & axis.ends_here
        by = RANGES if plain.any() or not ranges.operator.any() else OPERATORS
    wanted = (ranges.operator | (by == RANGES)) & ~(ranges.called | ranges.mapping)
    rows = np.flatnonzero(wanted & axis.ends_here)
    others = np.flatnonzero(ranges.called & axis.ends_here & (by == RANGES))
    calls = Extents(others, axis.range_start[others], ends[others])
    extents, siblings = _extents_of(recording, axis, rows, _numbers(ranges.names, recording)[rows], calls)
    extents = _never_above_users(extents, ranges.library, calls)
    # When a range without an end ended is not known.
    cut = np.sort(extents.row[(extents.end < axis.range_end[extents.row]) & ~recording.ranges.open[extents.row]])
    recording.counters.add("ranges", RANGES_OVERLAP, cut.size)
    names, name = ranges.names, ranges.name[extents.row]
    markers, node = _markers(recording, extents.row, names, name)
    steps = _iterations(extents, ranges, recording, work) if by == RANGES else (_NOTHING, [], {})
    extents, node = _with_stacks(extents, names, name, markers, node)
    return HierarchyKey(by, decoded.with_more(markers), extents, node + len(decoded), cut, siblings, *steps)


def _with_iterations(keyed: HierarchyKey, recording: Recording, work: Work, operators: Operators) -> HierarchyKey:
    """The same with the plain ranges that count iterations beside calls of modules."""
    among = np.append((operators.of_text[:-1] < 0) & (keyed.decoded.of_text < 0), False)
    texts = np.flatnonzero(among)
    plain = pa.array([recording.texts[row] for row in texts.tolist()], pa.large_string())
    among[texts] = np.asarray(pc.match_substring_regex(plain, ITERATION_CANDIDATES))
    rows = np.flatnonzero(among[recording.ranges.text] & work.axis.ends_here)
    if not rows.size:
        return keyed
    names = names_of(recording, keyed.decoded, operators, among[:-1])
    none = np.zeros(len(recording.ranges), dtype=bool)
    ranges = _Ranges(names, names.of_text[recording.ranges.text], none, none, of_libraries(recording), none)
    extents, _ = _extents_of(recording, work.axis, rows, _numbers(names, recording)[rows], _NOTHING)
    steps, markers, parts = _iterations(extents, ranges, recording, work)
    return keyed._replace(steps=steps, step_markers=markers, step_parts=parts)


class _Ranges(NamedTuple):
    """All ranges by what they are; ``mapping`` ones hold kernel maps, or run their graphs, and are never nodes."""

    names: Names
    name: Ints
    operator: Flags
    called: Flags
    library: Flags
    mapping: Flags


def _ranges(recording: Recording, decoded: Decoded, marker: Ints, operators: Operators) -> _Ranges:
    names = names_of(recording, decoded, operators)
    name = names.of_text[recording.ranges.text]
    operator = np.array([item.operator for item in names.names])[name]
    called = decoded.rows(ModuleMarker, Unreadable)[marker]
    mapping = decoded.rows(KernelMapMarker, CompiledGraphMarker)[marker]
    return _Ranges(names, name, operator, called, of_libraries(recording), mapping)


def _modules(decoded: Decoded) -> HierarchyKey:
    none = np.empty(0, dtype=np.int64)
    return HierarchyKey(MODULES, decoded, _NOTHING, none, none, {}, _NOTHING, [], {})


def of_libraries(recording: Recording) -> Flags:
    """Which ranges are in the domain of a library."""
    library = np.array([*map(is_library, recording.domains), False])
    return np.asarray(library[recording.ranges.domain])


def _numbers(names: Names, recording: Recording) -> Ints:
    texts: dict[tuple[str, bool], int] = {}
    text = np.array([texts.setdefault((item.text, item.operator), len(texts)) for item in names.names])
    domain = recording.ranges.domain
    return text[names.of_text[recording.ranges.text]] * (len(recording.domains) + 1) + domain + 1


def _never_above_users(extents: Extents, library: Flags, calls: Extents) -> Extents:
    """Leaves out a library's ranges that contain a user's: they are not what the user's are part of."""
    of_library = library[extents.row]
    if not of_library.any():
        return extents
    start, end = np.append(extents.start, calls.start), np.append(extents.end, calls.end)
    order = nesting_order(start, end)
    parent, depth = parents(start[order], end[order])
    with_users = np.append(~of_library, np.ones(calls.row.size, dtype=bool))[order]
    for level in reversed(by_level(depth)):
        inside = level[with_users[level] & (parent[level] >= 0)]
        with_users[parent[inside]] = True
    kept = np.ones(start.size, dtype=bool)
    kept[order] = ~with_users
    kept = kept[: extents.row.size] | ~of_library
    return Extents(*(column[kept] for column in extents))


def _markers(recording: Recording, rows: Rows, names: Names, name: Ints) -> tuple[list[Marker], Rows]:
    # A domain is named but where all ranges of its process that are no library's are in it.
    domain = recording.ranges.domain[rows].astype(np.int64)
    process = recording.threads.process[recording.ranges.thread[rows]]
    users = np.where(of_libraries(recording)[rows], -1, process)
    only = agreed(users, domain, int(process.max(initial=-1)) + 1)
    domain = np.where(domain == only[process], -1, domain)
    groups = grouped((domain, name))
    numbers: dict[tuple[str, Shapes | None], int] = {}
    markers: list[Marker] = []
    row = []
    for first in groups.first.tolist():
        item, number = names.names[name[first]], int(domain[first])
        text = f"{recording.domains[number]}:{item.text}" if number >= 0 and recording.domains[number] else item.text
        kind = OPERATOR if item.operator else REGION if item.region else RANGE
        path = ".".join((*item.module, part(text, kind)))
        row.append(numbers.setdefault((path, item.inputs), len(numbers)))
        if len(numbers) > len(markers):
            markers.append(ModuleMarker(path, inputs=item.inputs, kind=kind, phase=""))
    return markers, np.array(row, dtype=np.int64)[groups.group]


def _with_stacks(extents: Extents, names: Names, name: Ints, markers: list[Marker], node: Rows) -> tuple[Extents, Rows]:
    """The nodes, where those that record a call stack have one for each of its lines, whose markers are added."""
    if not any(item.stack for item in names.names):
        return extents, node
    of_stack, lines = stack_lines(extents.start, extents.end, name, [item.stack for item in names.names])
    numbers: dict[str, int] = {}
    of_line = [numbers.setdefault(line, len(numbers)) + len(markers) for line in lines]
    markers += [ModuleMarker(part(name, RANGE), kind=RANGE, phase="") for name in short_names(numbers).values()]
    others = np.flatnonzero([not item.stack for item in names.names])
    kept = np.flatnonzero(np.isin(name, others))
    at = np.concatenate((kept, of_stack))
    order = np.argsort(at, kind="stable")
    at = at[order]
    return Extents(*(column[at] for column in extents)), np.concatenate(
        (node[kept], np.array(of_line, dtype=np.int64))
    )[order]


def _iterations(
    extents: Extents, ranges: _Ranges, recording: Recording, work: Work
) -> tuple[Extents, list[StepMarker], dict[int, int]]:
    """Which ranges are iterations: those with numbers that count, one for each; and ``HierarchyKey.step_parts``.

    Of those inside each other the outermost counts; of several that count the same, or run at the same time, the one
    that launched most work.
    """
    names, name = ranges.names.names, ranges.name[extents.row]
    number = np.array([-1 if item.iteration is None or item.operator else item.iteration for item in names])[name]
    number[ranges.library[extents.row]] = -1
    at = np.flatnonzero(number >= 0)
    at = at[parents(extents.start[at], extents.end[at])[0] < 0]
    row, texts = extents.row[at], [item.text for item in names]
    thread, inside = recording.ranges.thread[row], work.inside(extents.start[at], extents.end[at])
    counting = _Counting(
        row,
        recording.threads.process[thread],
        thread,
        np.unique(texts, return_inverse=True)[1][name[at]],
        np.unique([_DIGITS.sub("", text) for text in texts], return_inverse=True)[1][name[at]],
        number[at],
        recording.ranges.start_ns[row],
        recording.ranges.end_ns[row],
        inside,
    )
    candidates = np.flatnonzero(_leading(counting))
    leading, parts = _one_loop(_Counting(*(column[candidates] for column in counting)))
    steps = Extents(*(column[at[candidates[leading]]] for column in extents))
    markers = [StepMarker(names[row].text, index=names[row].iteration) for row in ranges.name[steps.row].tolist()]
    return steps, markers, parts


class _Counting(NamedTuple):
    """Outermost ranges that count iterations, by thread and start; of each how long the work took launched inside.

    ``like`` is the same for names that differ only by numbers, as of stages of a pipeline.
    """

    row: Rows
    process: Ints
    thread: Ints
    name: Ints
    like: Ints
    number: Ints
    start_ns: Ints
    end_ns: Ints
    work_ns: Ints


#: By how many iterations a loader may be ahead of what is computed.
_MOST_AHEAD = 4
#: How many names of a process's threads may count iterations: a loop has few, and each is compared with all others.
_MOST_NAMES = 512


def _leading(counting: _Counting) -> Flags:
    """Ranges of names whose numbers count, but those that count the iterations of another name on their thread."""
    leading = np.zeros(counting.row.size, dtype=bool)
    names = grouped((counting.thread, counting.name))
    work, lasting = (
        sums(names.group, times, names.first.size) for times in (counting.work_ns, counting.end_ns - counting.start_ns)
    )
    for name in np.lexsort((names.first, -lasting, -work))[:_MOST_NAMES].tolist():
        rows = np.flatnonzero(names.group == name)
        others = np.flatnonzero(leading & (counting.thread == counting.thread[rows[0]]))
        leading[rows] = _counts(counting.number[rows]) and not _same_iterations(counting, others, rows)
    return leading


def _counts(number: Ints) -> bool:
    """Whether numbers rise by the same from each to the next, mostly: they may begin again in every epoch."""
    by = np.diff(number)
    rising = np.unique(by[by > 0], return_counts=True)[1]
    return by.size == 0 or 2 * int(rising.max(initial=0)) > by.size


def _same_iterations(counting: _Counting, rows: Rows, others: Rows) -> bool:
    """Whether other ranges are parts of the same iterations: of the same numbers, or by turns and some ahead."""
    if not rows.size:
        return False
    at = np.searchsorted(counting.start_ns[rows], counting.start_ns[others])
    beside = [counting.number[rows][np.clip(side, 0, rows.size - 1)] for side in (at - 1, at)]
    ahead = np.abs(counting.number[others] - beside).min(axis=0)
    by_turns = np.append(False, np.diff(at) > 0)
    return 2 * int(((ahead == 0) | (by_turns & (ahead <= _MOST_AHEAD))).sum()) >= at.size


def _one_loop(counting: _Counting) -> tuple[Rows, dict[int, int]]:
    """The loops of each process that neither run at the same time nor count the same in turns; parts of their steps."""
    threads = grouped((counting.process, counting.thread))
    size = threads.first.size
    lasting = sums(threads.group, counting.end_ns - counting.start_ns, size)
    order = np.lexsort((threads.first, -lasting, -sums(threads.group, counting.work_ns, size)))
    keys = [*zip(*(column.tolist() for column in (counting.process, counting.like, counting.number)), strict=True)]
    kept = np.zeros(counting.row.size, dtype=bool)
    for loop in order.tolist():
        own = np.flatnonzero(threads.group == loop)
        first, last = counting.start_ns[own].min(), counting.end_ns[own].max()
        meanwhile = (counting.end_ns > first) & (counting.start_ns < last)
        others = np.flatnonzero(kept & meanwhile & (counting.process == counting.process[own[0]]))
        apart = {keys[row] for row in own.tolist()}.isdisjoint(keys[row] for row in others.tolist())
        others = others[np.argsort(counting.start_ns[others], kind="stable")]
        before = np.searchsorted(counting.start_ns[others], counting.end_ns[own])
        until = np.append(np.iinfo(np.int64).min, counting.end_ns[others])[before]
        kept[own] = apart and not (until > counting.start_ns[own]).any()
    times = Counter(keys[row] for row in np.flatnonzero(kept).tolist())
    step = {keys[at]: int(counting.row[at]) for at in np.flatnonzero(kept).tolist() if times[keys[at]] == 1}
    parts = {int(counting.row[at]): step.get(keys[at], -1) for at in np.flatnonzero(~kept).tolist()}
    return np.flatnonzero(kept), parts
