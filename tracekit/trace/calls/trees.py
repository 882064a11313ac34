"""Trees of calls: what is part of what, also across threads."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import distinct, sums
from tracekit.arrays.intervals import by_level, depths, firsts, innermost, nesting_order, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import AMBIGUOUS_SEQ
from tracekit.markers.base import MODULE, OPERATOR, RANGE, Marker, ModuleMarker
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import Launches, Ranges, Recording
from tracekit.trace.autograd_nodes import AutogradNodes
from tracekit.trace.decoding import Decoded
from tracekit.trace.hierarchy.module_paths import name_and_kind
from tracekit.trace.hierarchy_keys import Extents, HierarchyKey, of_libraries


class Spans(NamedTuple):
    """Marked ranges that ended on their thread, by (start, -end), outer ones first.

    Attributes:
        parent: The span around it, or -1.
        encloses: Whether a call or the launch of some work lies inside.
        happened: When, of all before it began, the last launch of work or marked step began, on the axis.
        excused: Whether it was left open or never ended, so that a second range may be missing.
        worked: When each launch of work began, on the axis; not one for every span.
    """

    range_row: Rows
    start: Ints
    end: Ints
    thread: Rows
    process: Rows
    marker: Rows
    parent: Rows
    depth: Ints
    encloses: Flags
    happened: Ints
    excused: Flags
    worked: Ints


class CallColumns(NamedTuple):
    """Calls by (start, -end); the columns are those of ``calls.Calls``."""

    range_row: Rows
    start: Ints
    end: Ints
    marker: Rows
    outputs: Rows
    cause: Rows
    parent: Rows
    depth: Rows

    @staticmethod
    def nested(parts: Sequence[Sequence[Ints]]) -> "CallColumns":
        """Calls of several parts, given the columns but the last two; of those of one extent the later is inside."""
        columns = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
        order = nesting_order(columns[1], columns[2])
        columns = [column[order] for column in columns]
        return CallColumns._make([*columns, *parents(columns[1], columns[2])])


class Trees(NamedTuple):
    """Calls in an order in which every tree lies together, in pre-order, with the node above each, or -1."""

    call: Rows
    node: Rows
    parent: Rows
    depth: Ints


def runs_again(markers: list[Marker], marker: Rows, parent: Rows) -> Flags:
    """Which calls run a module again and are no part of the call around them."""
    of_phase = _in_phase(markers, "recompute")
    if not of_phase.any():
        return np.zeros(marker.size, dtype=bool)
    again = of_phase.take(marker)
    return np.asarray(again & (parent >= 0) & ~again[parent])


def apart_from_parent(markers: list[Marker], marker: Rows, parent: Rows) -> Flags:
    """Which calls are no part of the call around them: they run again, or begin a backward pass in a forward call.

    A backward pass begins with the outermost of its modules. Below the path of the call around it, it is its part.
    """
    apart, of_phase = runs_again(markers, marker, parent), _in_phase(markers, "backward")
    if not of_phase.any():
        return apart
    backward = np.append(of_phase.take(marker), np.False_)
    begins = np.flatnonzero(backward[:-1] & (parent >= 0) & ~backward[parent])
    pairs, pair = np.unique(np.stack((marker[begins], marker[parent[begins]])), axis=1, return_inverse=True)
    elsewhere = [_is_elsewhere(markers[inner], markers[outer]) for inner, outer in pairs.T.tolist()]
    apart[begins] = np.array(elsewhere, dtype=bool)[pair.reshape(-1)]
    return apart


def _in_phase(markers: list[Marker], phase: str) -> Flags:
    return np.array([*(isinstance(item, ModuleMarker) and item.phase == phase for item in markers), False])


def _is_elsewhere(inner: Marker, outer: Marker) -> bool:
    if not isinstance(inner, ModuleMarker) or not isinstance(outer, ModuleMarker) or outer.kind != MODULE:
        return False
    return bool(outer.path) and not inner.path.startswith(f"{outer.path}.")


def outside_siblings(parent: Rows, range_row: Rows, siblings: dict[int, int]) -> Rows:
    """The nearest call around each that is not of its own group of siblings (by rows of ranges)."""
    if not siblings:
        return parent
    last = max(siblings)
    groups = np.full(max(last, int(range_row.max(initial=0))) + 1, -1, dtype=np.int64)
    groups[[*siblings]] = [*siblings.values()]
    group, outside = groups[range_row], parent
    while (inside := (outside >= 0) & (group >= 0) & (lookup(group, outside) == group)).any():
        outside = np.where(inside, lookup(parent, outside), outside)
    return outside


def trees_of(parent: Rows, depth: Ints, above: Rows) -> Trees:
    """The trees of some calls, by the call around each and how many there are; ``above`` is what each is part of."""
    if np.array_equal(above, parent):
        rows = np.arange(parent.size, dtype=np.int32)
        return Trees(rows, rows, parent, depth)
    node = _pre_order(above)
    call = np.argsort(node)
    return Trees(call, node, lookup(node, above[call]), depths(above)[call])


def _pre_order(parent: Rows) -> Ints:
    levels = by_level(depths(parent))
    size = np.ones(parent.size, dtype=np.int64)
    for rows in reversed(levels[1:]):
        size += sums(parent[rows], size[rows], parent.size)
    place = np.empty(parent.size, dtype=np.int64)
    for rows in levels:
        rows = rows[np.argsort(parent[rows], kind="stable")]  # noqa: PLW2901
        before = np.cumsum(size[rows]) - size[rows]
        above = parent[rows]
        _, first = np.unique(above, return_index=True)
        start_of_family = np.repeat(before[first], np.diff(np.append(first, rows.size)))
        place[rows] = lookup(place, above, missing=-1) + 1 + before - start_of_family
    return place


def evaluations(
    nodes: AutogradNodes | None, calls: CallColumns, decoded: Decoded, counters: LossCounters
) -> tuple[Rows, Flags]:
    """For every call that of the operator which made the node of autograd that it evaluates, or -1.

    Second, which calls are such evaluations, or plain ranges inside. Counts those whose node several operators may have
    made.
    """
    size = calls.start.size
    if nodes is None or not nodes.row.size:
        return np.full(size, -1, dtype=np.int32), np.zeros(size, dtype=bool)
    counters.add("ranges", AMBIGUOUS_SEQ, int(nodes.ambiguous.sum()))
    call_of_range = np.full(int(max(nodes.row.max(), calls.range_row.max(initial=0))) + 1, -1, dtype=np.int64)
    marked = np.flatnonzero(calls.marker >= 0)
    call_of_range[calls.range_row[marked]] = marked
    maker = innermost(calls.start, calls.end, calls.parent, nodes.maker_start, nodes.maker_end)
    known = nodes.maker >= 0
    maker = np.where(known & (lookup(calls.marker, maker) >= 0), maker, -1)
    maker = np.where(known, maker[firsts(nodes.inside)], -1)
    evaluation = call_of_range[nodes.row]
    linked = (maker >= 0) & (evaluation >= 0)
    forward = np.full(size, -1, dtype=np.int64)
    forward[evaluation[linked]] = maker[linked]
    of_module = [isinstance(marker, ModuleMarker) and marker.kind == MODULE for marker in decoded.bare]
    bounds = np.flatnonzero((forward >= 0) | np.array([*of_module, False])[decoded.canonical_marker[calls.marker]])
    start, end = calls.start[bounds], calls.end[bounds]
    around = innermost(start, end, parents(start, end)[0], calls.start, calls.end)
    return forward, np.asarray(lookup(forward[bounds], around) >= 0)


def operator_places(
    parent: Rows, forward: Rows, marker: Rows, markers: list[Marker], *, whole: bool
) -> tuple[Rows, Rows, list[Marker]]:
    """Where evaluations of nodes of autograd stand: in the range that is open, as their operators do in theirs.

    For every call the nearest one above that is no operator, or -1 (without evaluations the one above it); for every
    evaluation whose operator is known the row of its marker, or -1; and these markers. ``whole`` is whether there are
    no ranges around operators, but what belongs to their paths.

    ``parent`` is the call around each, or the one that waits on another thread; ``forward`` the call of the operator
    that made the node that it evaluates; -1 is none.
    """
    linked = forward >= 0
    if not linked.any():
        return parent, np.full(parent.size, -1, dtype=np.int32), []
    operator = np.array([*(getattr(item, "kind", "") == OPERATOR or whole for item in markers), whole])[marker]
    link = np.where(operator, parent, -1)
    top, path, paths = firsts(link), np.zeros(parent.size, dtype=np.int64), [""]
    for level in by_level(depths(link)):
        rows = level[operator[level]]
        keys, key = distinct(lookup(path, link[rows], missing=0) * (len(markers) + 1) + marker[rows] + 1)
        path[rows] = len(paths) + key
        for outer, own in np.stack(np.divmod(keys, len(markers) + 1), axis=1).tolist():
            names = paths[outer], getattr(markers[own - 1], "path", "") if own else ""
            paths.append(".".join(filter(None, names)))
    known, of_path = np.unique(path[forward[linked]], return_inverse=True)
    place = np.full(parent.size, -1, dtype=np.int32)
    place[linked] = of_path
    placed: list[Marker] = [ModuleMarker(paths[row], kind=OPERATOR, phase="") for row in known.tolist()]
    return np.where(operator[top], -1, top), place, placed


#: The path of a module in a list, as ranges name it; and a name that may be a module's.
_LISTED, _NAMED = re.compile(r"\w+(?:\.\w+)*?\.\d+(?:\.\w+)*"), re.compile(r"[^\W\d]\w*(?:\.\w+)*")


def forward_ranges(parent: Rows, forward: Rows, marker: Rows, markers: list[Marker], above: Rows) -> Rows:
    """Where evaluations stand: in the innermost range in which their operators ran forward, if that names a module.

    Ranges do if one is the path of a module in a list (``layers.3.attention``): it, and those next to it (``output``).
    ``above`` is the nearest call above each one that is no operator.
    """
    paths = (item.path if isinstance(item, ModuleMarker) and item.kind == RANGE else "" for item in markers)
    names = [name_and_kind(path)[0] for path in paths]
    listed, named = (np.array([*map(bool, map(form.fullmatch, names)), False])[marker] for form in (_LISTED, _NAMED))
    around = lookup(marker, lookup(above, parent))
    module = listed | (named & np.isin(around, around[listed]))
    own = lookup(above, forward)
    return np.where(lookup(module, own, missing=False), own, above)


_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def waiting_calls(
    recording: Recording, axis: ThreadAxis, keyed: HierarchyKey, calls: Extents, asked: Ranges | Launches
) -> Rows:
    """For what autograd threads did the innermost call on the one other thread of the process that waits, or -1.

    A thread waits if it is the only other one inside a call, which is no library's, and does nothing then but evaluate
    nodes of autograd. This is inferred, where plain ranges or operators are the nodes.

    ``keyed`` knows the autograd threads; ``asked`` are ranges or launches on any threads.
    """
    process = np.where(np.isin(asked.thread, keyed.autograd), recording.threads.process[asked.thread], -1)
    candidates = np.zeros(process.size, dtype=np.int64)
    waiting = np.full(process.size, -1, dtype=np.int64)
    calling = np.unique(recording.ranges.thread[calls.row]) if (process >= 0).any() else process[:0]
    library = of_libraries(recording)[calls.row]
    for number in np.setdiff1d(calling, keyed.autograd).tolist():
        at = np.flatnonzero(process == recording.threads.process[number])
        before, after, idle = _open_calls(
            recording, axis, keyed.nodes, calls, number, (asked.start_ns[at], asked.end_ns[at])
        )
        candidates[at] += (before >= 0) | (after >= 0)
        idle &= (before >= 0) & ~library[before]
        waiting[at[idle]] = before[idle]
    return np.where(candidates == 1, waiting, -1)


def _open_calls(
    recording: Recording,
    axis: ThreadAxis,
    nodes: AutogradNodes | None,
    calls: Extents,
    number: int,
    asked: tuple[Ints, Ints],
) -> tuple[Rows, Rows, Flags]:
    """The innermost call that a thread was inside of as stretches began and as they ended; and when it was idle."""
    ranges, launches = recording.ranges, recording.launches
    own = np.flatnonzero((ranges.thread[calls.row] == number) & _outside(nodes, calls.start, calls.end))
    on = np.flatnonzero((ranges.thread == number) & _outside(nodes, axis.range_start, axis.range_end))
    launched = np.flatnonzero((launches.thread == number) & _outside(nodes, axis.launch_start, axis.launch_end))
    ended = on[axis.ends_here[on] & ~ranges.open[on]]
    begun, returned = axis.launch_start[launched], np.sort(axis.launch_end[launched])
    at = np.concatenate((axis.range_start[on], axis.range_end[ended], begun, returned))
    times = ranges.start_ns[on], ranges.end_ns[ended], launches.start_ns[launched], np.sort(launches.end_ns[launched])
    order = np.argsort(at, kind="stable")
    # A call that never ended need not have ended when its thread was last seen: the thread may have waited since.
    open_ = ranges.open[calls.row[own]] & (calls.end[own] == axis.range_end[calls.row[own]])
    start, end = calls.start[own], np.where(open_, _LAST, calls.end[own])
    at = np.concatenate(([_FIRST], at[order], [_LAST]))
    # Between two events nothing changes on the thread.
    event_ns = np.concatenate(times)[order]
    first, last = np.searchsorted(event_ns, asked[0], side="right"), np.searchsorted(event_ns, asked[1], side="left")
    above, _ = parents(start, end)
    before, after = (np.append(own, -1)[innermost(start, end, above, at[row], at[row + 1])] for row in (first, last))
    launching = np.searchsorted(begun, at[first], side="right") > np.searchsorted(returned, at[first], side="right")
    return before, after, np.asarray((first == last) & ~launching)


def _outside(nodes: AutogradNodes | None, start: Ints, end: Ints) -> Flags:
    return np.ones(start.size, dtype=bool) if nodes is None else np.asarray(nodes.around(start, end) < 0)
