"""When marked ranges ended, and which of them only mark the end of a call.

The profiler ends the innermost open range at each pop, whichever range the pop was meant for. So after a forward that
raised left ranges open, recorded ends are late, never early. A range that was left open ends at the end of the range
around it, at the next call of its root (the next step of its kind), or at the next call that only a range further out
makes, also of the same module. In an outermost call in which a range was left open, work after the last call that a
call made is in doubt (``left_open``).

The second, empty range that hooks write when a call has ended is part of that call, whether it records outputs or not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import (
    depths,
    firsts,
    innermost,
    nesting_order,
    one_axis,
    parents,
    siblings_before,
    subtree_ends,
)
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import LEFT_OPEN
from tracekit.markers.base import Marker, ModuleMarker, StepMarker, Unreadable
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import PUSH_POP, Recording
from tracekit.trace.calls.trees import Spans
from tracekit.trace.decoding import Decoded

_PLAIN, _UNPLACED, _MODULE, _STEP = range(4)
_OUTERMOST = -1
#: How far out the caller of a call is looked for.
_MOST_LEFT_OPEN = 512
_BEFORE_ALL = np.iinfo(np.int64).min
_NUMBERS = re.compile(r"[\d\[].*", re.DOTALL)


class RangeEnds(NamedTuple):
    """When ranges ended, and stretches in which it is not known what was open on a thread (``doubts``).

    These are given by starts and ends on the axis, in order, and the row of some range of that thread.
    """

    end: Ints
    end_ns: Ints
    doubts: tuple[Ints, Ints, Rows]


class _Names(NamedTuple):
    """Names in markers as numbers. A name is the path of a module, or a step's text up to the first number.

    ``kind`` and ``name`` are those of every marker, ``above`` is the nearest path above every name; the last entry of
    each is for plain text and for no name.
    """

    kind: Ints
    name: Ints
    above: Ints

    @staticmethod
    def of(markers: list[Marker]) -> _Names:
        kind, name = [], []
        # Paths are keys as they are, of which there may be many; a name of steps is in a tuple.
        numbers: dict[str | tuple[str], int] = {}
        for marker in markers:
            if isinstance(marker, ModuleMarker) and not marker.class_only:
                kind.append(_MODULE)
                name.append(numbers.setdefault(marker.path, len(numbers)))
            elif isinstance(marker, StepMarker):
                kind.append(_STEP)
                name.append(numbers.setdefault((_NUMBERS.sub("", marker.name),), len(numbers)))
            else:
                kind.append(_UNPLACED if isinstance(marker, ModuleMarker | Unreadable) else _PLAIN)
                name.append(_OUTERMOST)
        above = [_above(key, numbers) if isinstance(key, str) else _OUTERMOST for key in numbers]
        return _Names(*map(np.array, ([*kind, _PLAIN], [*name, _OUTERMOST], [*above, _OUTERMOST])))


def _above(path: str, numbers: dict[str | tuple[str], int]) -> int:
    while path:
        path = path.rpartition(".")[0]
        if path in numbers:
            return numbers[path]
    return _OUTERMOST


class _Pushes(NamedTuple):
    """Calls and steps by start, outer ones first; domains, each of which has a stack of its own, lie end to end.

    Attributes:
        kind: _UNPLACED, _MODULE or _STEP.
        parent: The one around it as recorded, or -1.
        ended: Whether its pop was recorded, and that of everything inside.
    """

    row: Rows
    kind: Ints
    name: Ints
    above: Ints
    start: Ints
    end: Ints
    parent: Rows
    ended: Flags

    def callers(self, parent: Rows) -> tuple[Flags, Flags]:
        """Which calls lie right inside the module above them in their path, and which right inside another module."""
        inside = (self.kind == _MODULE) & (parent >= 0) & (self.kind[parent] == _MODULE)
        by_own = self.above == self.name[parent]
        return np.asarray(inside & by_own), np.asarray(inside & ~by_own)


def range_ends(recording: Recording, decoded: Decoded, axis: ThreadAxis) -> RangeEnds:
    """Finds when every range ended, and counts the calls and steps that were left open."""
    ranges, none = recording.ranges, np.empty(0, dtype=np.int64)
    recorded = RangeEnds(axis.range_end, ranges.end_ns, (none, none, none))
    names, marker = _Names.of(decoded.bare), decoded.canonical_marker[np.append(decoded.of_text, -1)]
    pushed = (ranges.kind == PUSH_POP) & axis.ends_here & ((axis.range_end > axis.range_start) | ranges.open)
    rows = np.flatnonzero(pushed & (names.kind[marker] > _PLAIN)[ranges.text])
    suspects = _suspects(recording, axis, rows, names, marker)
    if not suspects.size:
        return recorded
    rows = rows[np.isin(ranges.thread[rows], suspects)]
    end, end_ns = axis.range_end.copy(), ranges.end_ns.copy()
    clipped = _end_with_the_range_around(recording, axis, rows, end, end_ns)
    pushes = _pushes(recording, axis, names, rows, marker[ranges.text[rows]], end)
    trees = _left_open_trees(pushes, clipped)
    cut, parent, unsure = _cut(pushes, trees)
    dead = np.flatnonzero(cut >= 0)
    left_open = np.union1d(pushes.row[dead], clipped)
    if not left_open.size:
        return recorded
    recording.counters.add("calls", LEFT_OPEN, left_open.size)
    at = pushes.row[cut[dead]]
    end[pushes.row[dead]], end_ns[pushes.row[dead]] = axis.range_start[at], recording.ranges.start_ns[at]
    _end_steps(recording, axis, pushes, cut, end, end_ns)
    return RangeEnds(end, end_ns, _doubts(axis, pushes, end, unsure, _last_called(pushes, parent)))


def _suspects(recording: Recording, axis: ThreadAxis, rows: Rows, names: _Names, marker: Rows) -> Rows:
    """Threads on which a range has no end, or a root began inside itself, by the markers of texts."""
    ranges = recording.ranges
    roots = (names.kind > _UNPLACED) & (names.above[names.name] == _OUTERMOST)
    at = rows[roots[marker][ranges.text[rows]]]
    again, _ = _inside_themselves(names.name[marker][ranges.text[at]], axis.range_start[at], axis.range_end[at])
    return np.unique(ranges.thread[np.concatenate((at[again], rows[ranges.open[rows]]))])


def _inside_themselves(name: Ints, start: Ints, end: Ints) -> tuple[Rows, Rows]:
    """Ranges that began before the last one of their name had ended, and these last ones."""
    rows = np.argsort(name, kind="stable")
    again = (name[rows[1:]] == name[rows[:-1]]) & (start[rows[1:]] < end[rows[:-1]])
    return rows[1:][again], rows[:-1][again]


def _end_with_the_range_around(recording: Recording, axis: ThreadAxis, rows: Rows, end: Ints, end_ns: Ints) -> Rows:
    """Ends ranges without an end where one around them ended; returns the rows of these."""
    is_open = recording.ranges.open[rows]
    ended, left = rows[~is_open], rows[is_open]
    since, until = axis.range_start[ended], axis.range_end[ended]
    at = axis.range_start[left]
    around = np.append(ended, -1)[innermost(since, until, parents(since, until)[0], at - 1, at + 1)]
    left, around = left[around >= 0], around[around >= 0]
    end[left], end_ns[left] = axis.range_end[around], recording.ranges.end_ns[around]
    return left


def _pushes(recording: Recording, axis: ThreadAxis, names: _Names, rows: Rows, marker: Rows, ends: Ints) -> _Pushes:
    domain = np.unique(recording.ranges.domain[rows], return_inverse=True)[1]
    start, end = one_axis([domain, domain], [axis.range_start[rows], ends[rows]])
    name = names.name[marker]
    order = nesting_order(start, end)
    start, end, rows, marker, name = start[order], end[order], rows[order], marker[order], name[order]
    parent, depth = parents(start, end)
    # A stack does not pop a range before those inside: such an end was meant for another.
    unended = np.append(0, np.cumsum(recording.ranges.open[rows]))
    ended = unended[subtree_ends(parent, depth)] == unended[:-1]
    return _Pushes(rows, names.kind[marker], name, names.above[name], start, end, parent, ended)


def _left_open_trees(pushes: _Pushes, clipped: Rows) -> Flags:
    """Which calls and steps are part of an outermost one that shows that something was left open in it.

    Where all ended, a root right inside itself calls itself, or two sets of hooks marked it.
    """
    roots = np.flatnonzero((pushes.kind != _UNPLACED) & (pushes.above == _OUTERMOST))
    again, last = (roots[at] for at in _inside_themselves(pushes.name[roots], pushes.start[roots], pushes.end[roots]))
    tree = np.cumsum(pushes.parent < 0) - 1
    ended = pushes.ended[pushes.parent < 0][tree]
    shown = np.isin(pushes.row, clipped)
    shown[again[(pushes.parent[again] != last) | ~ended[again]]] = True
    return np.isin(tree, tree[shown])


def _cut(pushes: _Pushes, trees: Flags) -> tuple[Rows, Rows, Flags]:
    """For every call and step of some trees the push by which it had ended, or -1; and the one around it, or -1.

    Calls of the root end what is open of it, and calls that only the module above them makes what is open inside that.
    Third, which need not have ended as recorded: those outside of an outermost one that did.
    """
    # First without these, as what ended as recorded is ended by none, and shows which modules others call.
    known = ~_walked(pushes, trees, np.zeros_like(trees))[2]
    elsewhere = pushes.name[pushes.callers(pushes.parent)[1] & known & known[pushes.parent]]
    return _walked(pushes, trees, (pushes.kind == _MODULE) & ~known & ~np.isin(pushes.name, elsewhere))


def _walked(pushes: _Pushes, trees: Flags, ending: Flags) -> tuple[Rows, Rows, Flags]:
    starts, ends, last_called = pushes.start.tolist(), pushes.end.tolist(), _last_called(pushes, pushes.parent)
    asked = (ending | (pushes.above == _OUTERMOST)).tolist()
    cut, parent = np.full(trees.size, -1), np.full(trees.size, -1)
    is_open: list[int] = []
    for push in np.flatnonzero(trees).tolist():
        while is_open and ends[is_open[-1]] <= starts[push]:
            is_open.pop()
        if is_open and asked[push]:
            kept = _still_open(pushes, last_called, is_open, push, may_end=bool(ending[push]))
            cut[is_open[kept:]] = push
            del is_open[kept:]
        parent[push] = is_open[-1] if is_open else -1
        is_open.append(push)
    whole = trees & pushes.ended & (parent < 0) & (cut < 0)
    sure = np.maximum.accumulate(np.where(whole, pushes.end, _BEFORE_ALL)) >= pushes.end
    return np.where(sure, -1, cut), parent, trees & ~sure


def _still_open(pushes: _Pushes, last_called: Rows, is_open: list[int], push: int, *, may_end: bool) -> int:
    """How many of the open calls and steps are still open after another push."""
    size = len(is_open)
    name, above = pushes.name[push], pushes.above[push]
    near = range(size - 1, max(-1, size - _MOST_LEFT_OPEN), -1)
    if above == _OUTERMOST != name:
        for position in near:
            if pushes.name[is_open[position]] == name:
                return position
    if not may_end or pushes.kind[is_open[-1]] != _MODULE:
        return size
    for position in near:
        around = is_open[position]
        if pushes.kind[around] == _STEP:
            return position + 1 if above == _OUTERMOST else size
        if last_called[around] > push or (pushes.kind[around] == _MODULE and pushes.name[around] == above):
            return position + 1
    return 0 if above == _OUTERMOST else size


def _last_called(pushes: _Pushes, parent: Rows) -> Rows:
    last = np.arange(parent.size)
    called = np.flatnonzero(pushes.callers(parent)[0])
    np.maximum.at(last, parent[called], called)
    return last


def _doubts(axis: ThreadAxis, pushes: _Pushes, end: Ints, unsure: Flags, last_called: Rows) -> tuple[Ints, Ints, Rows]:
    """Stretches in which the innermost call may have ended: after the last call that it made."""
    calls = np.flatnonzero(pushes.kind < _STEP)
    calls = calls[nesting_order(axis.range_start[pushes.row[calls]], end[pushes.row[calls]])]
    start, until = axis.range_start[pushes.row[calls]], end[pushes.row[calls]]
    edges = np.sort(np.concatenate((start, until)), kind="stable")
    at = innermost(start, until, parents(start, until)[0], edges[:-1], edges[1:])
    proof = axis.range_start[pushes.row[last_called[calls]]]
    doubtful = (edges[1:] > edges[:-1]) & (at >= 0) & unsure[calls[at]] & (edges[:-1] >= proof[at])
    return edges[:-1][doubtful], edges[1:][doubtful], pushes.row[calls[at[doubtful]]]


def _end_steps(recording: Recording, axis: ThreadAxis, pushes: _Pushes, cut: Rows, end: Ints, end_ns: Ints) -> None:
    """Ends steps that were left open at the last pop of a range from within: that was meant for the step."""
    popped = np.flatnonzero((recording.ranges.kind == PUSH_POP) & axis.ends_here & ~recording.ranges.open)
    pushed, ended = axis.range_start[popped], axis.range_end[popped]
    called = np.sort(axis.range_start[pushes.row[pushes.kind < _STEP]])
    for step in np.flatnonzero((cut >= 0) & (pushes.kind == _STEP)).tolist():
        start, until = axis.range_start[pushes.row[[step, cut[step]]]]
        last = max([start, *called[: np.searchsorted(called, until)][-1:]])
        within = np.flatnonzero((pushed >= start) & (pushed <= last) & (ended > last) & (ended < until))
        if within.size:
            at = popped[within[np.argmax(ended[within])]]
            end[pushes.row[step]], end_ns[pushes.row[step]] = axis.range_end[at], recording.ranges.end_ns[at]


#: A forward that raised has no second range: one of so many calls may lack it.
_SELDOM = 5
#: So many calls without tensors that were each followed by an equal, empty range show that all are.
_ENOUGH_PAIRS = 2


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


def second_ranges(spans: Spans, decoded: Decoded) -> tuple[Flags, Rows, Rows]:
    """Which spans only end a call, that call (-1 where it is not in the report), and every span's marker.

    A call that could not be read has the marker of its second range.

    One that records outputs and no inputs always does. One that records no tensors at all does if it follows its call
    and says the same of the module, where nearly all calls of the process are followed by one.
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
    pending = bare & ~second & ~closed[:-1]
    candidate = np.where(pending & ~spans.encloses & like_before & ~closed[before], before, -1)
    if (candidate >= 0).any():
        statement = _statements(decoded.bare)[decoded.canonical_marker[spans.marker]]
        closing = (candidate >= 0) & ~(bare | only_result)[candidate] & (statement == statement[candidate])
        closed[candidate[closing]] = True
        paired, ends = _pairs(spans, path, pending & ~closing, candidate)
        unpaired = placed & ~(second | closed[:-1] | closing | paired | spans.excused)
        closing = (closing | ends) & _nearly_always(spans, closed[:-1], paired & spans.encloses, unpaired)
        second, call = second | closing, np.where(closing, candidate, call)
    named = np.flatnonzero((call >= 0) & unreadable[call])
    marker[call[named]] = marker[named]
    return second, call, marker


def _pairs(spans: Spans, path: Ints, pending: Flags, candidate: Rows) -> tuple[Flags, Flags]:
    """Equal spans by turns, a call and its second range; and which of these are second.

    The call of the first second range of a thread may be from before the recording.
    """
    chain = np.where(pending & pending[candidate] & (spans.marker[candidate] == spans.marker), candidate, -1)
    first = firsts(chain)
    even = np.bincount(first, minlength=first.size)[first] % 2 == 0
    keys = spans.thread.astype(np.int64) * (path.max(initial=0) + 2) + path
    leading = np.isin(np.arange(path.size), np.unique(keys, return_index=True)[1])
    cut_off = (leading & (spans.parent < 0) & ~spans.encloses & ~spans.excused)[first] & ~even
    paired = pending & (even | cut_off)
    return paired, paired & (cut_off ^ (depths(chain) % 2 == 1))


def _nearly_always(spans: Spans, closed: Flags, pairs: Flags, unpaired: Flags) -> Flags:
    """For every span whether calls of its process have second ranges throughout, but for few whose forward raised."""
    size = int(spans.process.max()) + 1
    ended, calls, without = (np.bincount(spans.process[rows], minlength=size) for rows in (closed, pairs, unpaired))
    return (((ended > 0) | (calls >= _ENOUGH_PAIRS)) & (without * _SELDOM <= ended + calls))[spans.process]


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
