"""When marked ranges ended, and which of them only mark the end of a call.

The profiler ends the innermost open range at each pop, whichever range the pop was meant for. So after a forward that
raised left ranges open, recorded ends are late, never early. A range that was left open ends at the end of the range
around it, or where the next call of its root (the next step of its kind) begins. What else ran in the outermost call
in which a range was left open is not known (``left_open``).

The second, empty range that hooks write when a call has ended is part of that call, whether it records outputs or not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import depths, firsts, innermost, nesting_order, parents, siblings_before, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import LEFT_OPEN
from tracekit.markers.base import Marker, ModuleMarker, StepMarker, Unreadable
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import PUSH_POP, Recording
from tracekit.trace.calls.trees import Spans
from tracekit.trace.decoding import Decoded

_NUMBERS = re.compile(r"[\d\[].*", re.DOTALL)


class RangeEnds(NamedTuple):
    """When ranges ended, and the outermost calls in which a range was left open (``doubts``).

    These are given by starts and ends on the axis, in order, and their rows.
    """

    end: Ints
    end_ns: Ints
    doubts: tuple[Ints, Ints, Rows]


def range_ends(recording: Recording, decoded: Decoded, axis: ThreadAxis) -> RangeEnds:
    """Finds when every range ended, and counts the calls and steps of which it is not known."""
    ranges, none = recording.ranges, np.empty(0, dtype=np.int64)
    ends = RangeEnds(axis.range_end, ranges.end_ns, (none, none, none))
    pushed = (ranges.kind == PUSH_POP) & axis.ends_here & ((axis.range_end > axis.range_start) | ranges.open)
    rows = np.flatnonzero(pushed & decoded.ranges(recording, ModuleMarker, Unreadable, StepMarker))
    root = _roots(decoded.bare)[decoded.canonical_marker[decoded.of_text[ranges.text[rows]]]]
    again, _ = _inside_themselves(root, axis.range_start[rows], axis.range_end[rows])
    suspects = np.unique(ranges.thread[rows[np.append(again, np.flatnonzero(ranges.open[rows]))]])
    if not suspects.size:
        return ends
    suspect = np.isin(ranges.thread[rows], suspects)
    rows, root = rows[suspect], root[suspect]
    ends = ends._replace(end=axis.range_end.copy(), end_ns=ranges.end_ns.copy())
    step, outermost = decoded.ranges(recording, StepMarker), [none]
    for domain in np.unique(ranges.domain[rows]).tolist():  # each has a stack of its own
        own = ranges.domain[rows] == domain
        unsure = _corrected(recording, axis, rows[own], root[own], ends)
        recording.counters.add("calls", LEFT_OPEN, unsure.size)
        calls, steps = unsure[~step[unsure]], unsure[step[unsure]]
        _end_steps(recording, axis, calls, steps[ends.end[steps] < axis.range_end[steps]], ends)
        outermost.append(calls[parents(axis.range_start[calls], ends.end[calls])[0] < 0])
    row = np.sort(np.concatenate(outermost))
    return ends._replace(doubts=(axis.range_start[row], ends.end[row], row))


def _roots(markers: list[Marker]) -> Ints:
    """A number for the root that each marker names, also for the kind of its step; -1 for others."""
    paths = {item.path for item in markers if isinstance(item, ModuleMarker) and not item.class_only}
    numbers: dict[str | tuple[str], int] = {}
    roots = []
    for item in markers:
        key: str | tuple[str] | None = None
        if isinstance(item, StepMarker):
            key = (_NUMBERS.sub("", item.name),)
        elif isinstance(item, ModuleMarker) and not item.class_only and not _is_below(item.path, paths):
            key = item.path
        roots.append(-1 if key is None else numbers.setdefault(key, len(numbers)))
    return np.array(roots, dtype=np.int64)


def _is_below(path: str, paths: set[str]) -> bool:
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            return True
    return False


def _inside_themselves(root: Ints, start: Ints, end: Ints) -> tuple[Rows, Rows]:
    """Ranges of roots that began before the last one of their root had ended, and these last ones."""
    rows = np.flatnonzero(root >= 0)
    rows = rows[np.argsort(root[rows], kind="stable")]
    again = (root[rows[1:]] == root[rows[:-1]]) & (start[rows[1:]] < end[rows[:-1]])
    return rows[1:][again], rows[:-1][again]


def _corrected(recording: Recording, axis: ThreadAxis, rows: Rows, root: Ints, ends: RangeEnds) -> Rows:
    """Corrects the ends of calls and steps that were left open; returns those that need not have ended as recorded."""
    clipped = _end_with_the_range_around(recording, axis, rows, ends)
    order = nesting_order(axis.range_start[rows], ends.end[rows])
    rows, root = rows[order], root[order]
    start, end = axis.range_start[rows], ends.end[rows]
    parent, depth = parents(start, end)
    # A stack does not pop a range before those inside: such an end was meant for another.
    unended = np.append(0, np.cumsum(recording.ranges.open[rows]))
    ended = unended[subtree_ends(parent, depth)] == unended[:-1]
    again, last = _inside_themselves(root, start, end)
    # Where all ended, a root right inside itself calls itself, or two sets of hooks marked it.
    shown = np.isin(rows, clipped)
    shown[again[(parent[again] != last) | ~ended[firsts(parent)[again]]]] = True
    tree = np.cumsum(parent < 0)
    doubtful = np.isin(tree, tree[shown])
    again = again[np.argsort(last, kind="stable")]
    for row, by in zip(np.sort(last).tolist(), again.tolist(), strict=True):
        if doubtful[row]:
            # At the latest when the one around it ended.
            at, at_ns = axis.range_start[rows[by]], recording.ranges.start_ns[rows[by]]
            time, time_ns = min(at, ends.end[rows[row]]), min(at_ns, ends.end_ns[rows[row]])
            inside = rows[row : np.searchsorted(start, time)]
            ends.end[inside] = np.minimum(ends.end[inside], time)
            ends.end_ns[inside] = np.minimum(ends.end_ns[inside], time_ns)
    sure = ended & (ends.end[rows] == end)
    unsure: Rows = rows[doubtful & ~sure[firsts(parents(start, ends.end[rows])[0])]]
    return unsure


def _end_with_the_range_around(recording: Recording, axis: ThreadAxis, rows: Rows, ends: RangeEnds) -> Rows:
    """Ends ranges without an end where one around them ended; returns these."""
    is_open = recording.ranges.open[rows]
    ended, left = rows[~is_open], rows[is_open]
    since, until = axis.range_start[ended], axis.range_end[ended]
    at = axis.range_start[left]
    around = np.append(ended, -1)[innermost(since, until, parents(since, until)[0], at - 1, at + 1)]
    left, around = left[around >= 0], around[around >= 0]
    ends.end[left], ends.end_ns[left] = axis.range_end[around], recording.ranges.end_ns[around]
    return left


def _end_steps(recording: Recording, axis: ThreadAxis, calls: Rows, steps: Rows, ends: RangeEnds) -> None:
    """Ends steps that were left open at the last pop of a range from within: that was meant for the step."""
    popped = np.flatnonzero((recording.ranges.kind == PUSH_POP) & axis.ends_here & ~recording.ranges.open)
    pushed, ended = axis.range_start[popped], axis.range_end[popped]
    called = np.sort(axis.range_start[calls])
    for step in steps.tolist():
        start, until = axis.range_start[step], ends.end[step]
        last = max([start, *called[: np.searchsorted(called, until)][-1:]])
        within = np.flatnonzero((pushed >= start) & (pushed <= last) & (ended > last) & (ended < until))
        if within.size:
            at = popped[within[np.argmax(ended[within])]]
            ends.end[step], ends.end_ns[step] = axis.range_end[at], recording.ranges.end_ns[at]


#: A forward that raised has no second range: one of so many calls may lack it.
_SELDOM = 5
#: So many calls without tensors that were each followed by an equal, empty range show that all are.
_ENOUGH_PAIRS = 2


def second_ranges(spans: Spans, decoded: Decoded) -> tuple[Flags, Rows, Rows]:
    """Which spans only end a call, that call (-1 where it is not in the report), and every span's marker.

    A call that could not be read has the marker of its second range.

    One that records outputs and no inputs always does. An empty one that records no tensors at all does if it follows
    its call and says the same of the module, where nearly all calls of the process are followed by one.
    """
    only_result, bare, placed = _traits(spans, decoded)
    path, marker = decoded.path.take(spans.marker), spans.marker.copy()
    before, unreadable = _previous_sibling(spans), decoded.rows(Unreadable).take(spans.marker)
    second = only_result & ~spans.encloses
    like_before = (before >= 0) & ~second[before] & (path[before] == path)
    call = np.where(second & (like_before | ((before >= 0) & unreadable[before])), before, -1)
    closed = np.zeros(call.size + 1, dtype=bool)
    closed[call] = True
    # A span that has a second range of its own is a call.
    repeats = bare & ~(second | spans.encloses | closed[:-1]) & like_before & ~(only_result | closed[:-1])[before]
    if repeats.any():
        statement = _statements(decoded.bare)[decoded.canonical_marker[spans.marker]]
        repeated = np.where(repeats & (statement[before] == statement), before, -1)
        # By turns a call and its second range.
        closing = depths(repeated) % 2 == 1
        ended, pairs = closed.copy(), np.zeros_like(closed)
        pairs[repeated[closing]] = closed[repeated[closing]] = True
        ended[:-1] |= pairs[:-1] & ~bare
        known = (
            ended[:-1],
            pairs[:-1] & bare & spans.encloses,
            placed & ~(second | closing | closed[:-1] | spans.excused),
        )
        size = int(spans.process.max()) + 1
        ends, calls, without = (np.bincount(spans.process[rows], minlength=size) for rows in known)
        always = ((ends > 0) | (calls >= _ENOUGH_PAIRS)) & (without * _SELDOM <= ends + calls)
        closing &= always[spans.process]
        second, call = second | closing, np.where(closing, repeated, call)
    named = np.flatnonzero((call >= 0) & unreadable[call])
    marker[call[named]] = marker[named]
    return second, call, marker


def _traits(spans: Spans, decoded: Decoded) -> tuple[Flags, Flags, Flags]:
    """Which spans record outputs alone, which no tensors, and of which calls more than the class is known."""
    calls = [marker if isinstance(marker, ModuleMarker) else None for marker in decoded.bare]
    only_result = [call is not None and call.only_result for call in calls]
    bare = [call is not None and call.has_no_tensors for call in calls]
    placed = [call is not None and not (call.class_only or call.only_result) for call in calls]
    # First of the markers, of which there are fewer than spans.
    of_marker = [np.array([*column, False])[decoded.canonical_marker] for column in (only_result, bare, placed)]
    of_marker[1] &= np.array([*(not any(tensors) for tensors in decoded.tensors), False])[decoded.tensors_of]
    return of_marker[0].take(spans.marker), of_marker[1].take(spans.marker), of_marker[2].take(spans.marker)


def _statements(markers: list[Marker]) -> Ints:
    """A number for what each marker says of its module; one more entry for no marker."""
    numbers: dict[object, int] = {}
    statements = (
        (*item[:3], item.static_params, item.phase) if isinstance(item, ModuleMarker) else row
        for row, item in enumerate(markers)
    )
    return np.array([*(numbers.setdefault(statement, len(numbers)) for statement in statements), -1])


def _previous_sibling(spans: Spans) -> Rows:
    """For every span the one before it on its thread that lies in the same span, or in none; or -1.

    Also -1 where work was launched, or a step began, since that had ended.
    """
    previous = siblings_before(spans.depth)
    outermost = np.flatnonzero(spans.parent < 0)
    # The first of each thread.
    previous[outermost[spans.thread[outermost] != spans.thread[previous[outermost]]]] = -1
    previous[spans.happened >= spans.end[previous]] = -1
    return previous
