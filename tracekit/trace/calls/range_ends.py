"""Ends of push/pop ranges: as recorded, except on threads on which a forward that raised left ranges open.

The profiler ends the innermost open range at each pop, whichever range the pop was meant for. So after a range was left
open, recorded ends are late, never early, and what is truly open at any time is among what is recorded as open. An open
call or step ends at the end of the range around it, at the next call of its root (the next step of its kind), or at the
next push that only a range further out can have made, whichever is first. Two things prove recorded ends: a call
around which everything had ended, and a later call by the same caller, which must have been open until then. Where
nothing proves which call is open, work stays unattributed (``left_open``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import distinct
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import LEFT_OPEN
from tracekit.markers.base import Marker, ModuleMarker, StepMarker, Unreadable
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import PUSH_POP, Recording
from tracekit.trace.decoding import Decoded

_PLAIN, _UNPLACED, _MODULE, _STEP = range(4)
_OUTERMOST = -1
#: Where more calls than nest in any model would have ended with one push, none is taken to have.
_MOST_LEFT_OPEN = 512
_BEFORE_ALL = np.iinfo(np.int64).min
_NUMBERS = re.compile(r"[\d\[].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RangeEnds:
    """When ranges ended, and stretches in which it is not known what was open on a thread (``doubts``).

    These are given by starts and ends on the axis, in order, and the row of some range of that thread.
    """

    end: Ints
    end_ns: Ints
    as_recorded: bool
    doubts: tuple[Ints, Ints, Rows]

    def in_doubt(self, at: Ints) -> Flags:
        """Which times on the axis lie in such a stretch, or at its end."""
        since, until, _ = self.doubts
        if not since.size:
            return np.zeros(at.size, dtype=bool)
        row = np.searchsorted(since, at) - 1
        return np.append(until, _BEFORE_ALL)[row] >= at


class _Names(NamedTuple):
    """Names in markers as numbers. A name is the path of a module, or a step's text up to the first number.

    Attributes:
        kind: For every marker _PLAIN, _UNPLACED, _MODULE or _STEP; one more entry for plain text.
        name: For every marker the number of its name, or _OUTERMOST; one more entry for plain text.
        above: For every name that of the nearest path above it, or _OUTERMOST; one more entry for no name.
        parts: For every name how many dots its path has; one more entry for no name.
    """

    kind: Ints
    name: Ints
    above: Ints
    parts: Ints

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
        parts = [key.count(".") for key in numbers]
        return _Names(*map(np.array, ([*kind, _PLAIN], [*name, _OUTERMOST], [*above, _OUTERMOST], [*parts, 0])))


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
    """

    row: Rows
    thread: Rows
    kind: Ints
    name: Ints
    above: Ints
    start: Ints
    end: Ints
    parent: Rows
    ended: Flags

    def ends_before(self, cut: Rows) -> Ints:
        """Ends of all, where some end when another is pushed at the latest."""
        return np.where(cut >= 0, self.start[cut], self.end)

    def of_caller(self, parent: Rows) -> Flags:
        """Which are calls right inside the module above them in their path."""
        calls = (self.kind == _MODULE) & (parent >= 0) & (self.kind[parent] == _MODULE)
        return np.asarray(calls & (self.above == self.name[parent]))

    def inside(self, chosen: Flags) -> Flags:
        """Which lie in chosen ones as recorded, or are chosen themselves."""
        return np.maximum.accumulate(np.where(chosen, self.end, _BEFORE_ALL)) >= self.end


def range_ends(recording: Recording, decoded: Decoded, axis: ThreadAxis) -> RangeEnds:
    """Finds when every range ended, and counts the calls and steps that were left open."""
    none = np.empty(0, dtype=np.int64)
    recorded = RangeEnds(axis.range_end, recording.ranges.end_ns, as_recorded=True, doubts=(none, none, none))
    names = _Names.of(decoded.bare)
    rows = _marked(recording, decoded, axis, names)
    suspects = _suspects(recording, decoded, axis, names, rows)
    if not suspects.size:
        return recorded
    suspect = np.isin(recording.ranges.thread[rows], suspects)
    own, others = rows[suspect], rows[~suspect]
    kind, name = _numbers(recording, decoded, names, others)
    around, _ = parents(axis.range_start[others], axis.range_end[others])
    elsewhere = _callers(kind, name, around, np.ones(others.size, dtype=bool))
    end, end_ns = axis.range_end.copy(), recording.ranges.end_ns.copy()
    clipped = _end_with_the_range_around(recording, axis, own, end, end_ns)
    pushes = _pushes(recording, decoded, axis, names, own, end)
    cut, sure, last_called = _cut(pushes, names.above, elsewhere, clipped)
    dead = np.flatnonzero(cut >= 0)
    left_open = np.union1d(pushes.row[dead], np.flatnonzero(clipped))
    if not left_open.size:
        return recorded
    recording.counters.add("calls", LEFT_OPEN, left_open.size)
    at = pushes.row[cut[dead]]
    end[pushes.row[dead]], end_ns[pushes.row[dead]] = axis.range_start[at], recording.ranges.start_ns[at]
    _end_steps(recording, axis, pushes, cut, end, end_ns)
    shown = np.isin(pushes.thread, recording.ranges.thread[left_open])
    doubts = _doubts(axis, pushes, end, shown & ~sure, last_called)
    return RangeEnds(end, end_ns, as_recorded=False, doubts=doubts)


def _marked(recording: Recording, decoded: Decoded, axis: ThreadAxis, names: _Names) -> Rows:
    ranges = recording.ranges
    pushed = (ranges.kind == PUSH_POP) & axis.ends_here & ((axis.range_end > axis.range_start) | ranges.open)
    marked = names.kind[decoded.canonical_marker[np.append(decoded.of_text, -1)]] > _PLAIN
    return np.flatnonzero(pushed & marked[ranges.text])


def _numbers(recording: Recording, decoded: Decoded, names: _Names, rows: Rows) -> tuple[Ints, Ints]:
    marker = decoded.canonical_marker[decoded.of_text[recording.ranges.text[rows]]]
    return names.kind[marker], names.name[marker]


def _suspects(recording: Recording, decoded: Decoded, axis: ThreadAxis, names: _Names, rows: Rows) -> Rows:
    ranges = recording.ranges
    marker = decoded.canonical_marker[np.append(decoded.of_text, -1)]
    roots = np.flatnonzero(_roots(names.kind, names.above[names.name])[marker][ranges.text[rows]])
    name, of_roots = names.name[marker[ranges.text[rows[roots]]]], rows[roots]
    again, last = _inside_themselves(name, axis.range_start[of_roots], axis.range_end[of_roots])
    # Where all ended, a root right inside itself calls itself, or two sets of hooks marked it.
    if again.size:
        around, _ = parents(axis.range_start[rows], axis.range_end[rows])
        again = again[around[roots[again]] != roots[last]]
    is_open = rows[ranges.open[rows]]
    return np.unique(ranges.thread[np.concatenate((of_roots[again], is_open))])


def _roots(kind: Ints, above: Ints) -> Flags:
    return np.asarray((kind == _STEP) | ((kind == _MODULE) & (above == _OUTERMOST)))


def _inside_themselves(name: Ints, start: Ints, end: Ints) -> tuple[Rows, Rows]:
    """Ranges that began before the last one of their name had ended, by start, and these last ones."""
    rows = np.argsort(name, kind="stable")
    again = (name[rows[1:]] == name[rows[:-1]]) & (start[rows[1:]] < end[rows[:-1]])
    order = np.argsort(rows[1:][again])
    return rows[1:][again][order], rows[:-1][again][order]


def _end_with_the_range_around(recording: Recording, axis: ThreadAxis, rows: Rows, end: Ints, end_ns: Ints) -> Flags:
    """Ends ranges without an end where one around them ended; returns which ranges of the recording these are."""
    is_open = recording.ranges.open[rows]
    ended, left = rows[~is_open], rows[is_open]
    since, until = axis.range_start[ended], axis.range_end[ended]
    at = axis.range_start[left]
    around = np.append(ended, -1)[innermost(since, until, parents(since, until)[0], at - 1, at + 1)]
    left, around = left[around >= 0], around[around >= 0]
    end[left], end_ns[left] = axis.range_end[around], recording.ranges.end_ns[around]
    clipped = np.zeros(end.size, dtype=bool)
    clipped[left] = True
    return clipped


def _pushes(recording: Recording, decoded: Decoded, axis: ThreadAxis, names: _Names, rows: Rows, ends: Ints) -> _Pushes:
    kind, name = _numbers(recording, decoded, names, rows)
    _, domain = distinct(recording.ranges.domain[rows] + 1)
    start, end = one_axis([domain, domain], [axis.range_start[rows], ends[rows]])
    order = nesting_order(start, end, kind != _STEP, names.parts[name])
    start, end, left = start[order], end[order], (ends < axis.range_end)[rows[order]]
    parent, _ = parents(start, end)
    ended = ~(recording.ranges.open[rows[order]] | left)
    # A stack does not pop a range before those inside: such an end was meant for another.
    above = parent[left]
    while (above := above[above >= 0]).size:
        ended[above], above = False, parent[above]
    return _Pushes(
        row=rows[order],
        thread=recording.ranges.thread[rows[order]],
        kind=kind[order],
        name=name[order],
        above=names.above[name[order]],
        start=start,
        end=end,
        parent=parent,
        ended=ended,
    )


def _callers(kind: Ints, name: Ints, parent: Rows, chosen: Flags) -> set[tuple[int, int]]:
    """Names of chosen ranges, each with that of a call right around it, or _OUTERMOST where no chosen one is."""
    rows = np.flatnonzero(chosen)
    calls = np.append(chosen & (kind == _MODULE), False)
    caller = np.where(calls[parent[rows]], np.append(name, _OUTERMOST)[parent[rows]], _OUTERMOST)
    # In one number each, from 0 on: the kinds of names are few.
    width = int(name.max(initial=_OUTERMOST)) - _OUTERMOST + 1
    pairs, _ = distinct((caller - _OUTERMOST) * width + name[rows] - _OUTERMOST)
    return {(pair % width + _OUTERMOST, pair // width + _OUTERMOST) for pair in pairs.tolist()}


def _cut(pushes: _Pushes, above: Ints, elsewhere: set[tuple[int, int]], clipped: Flags) -> tuple[Rows, Flags, Rows]:
    """For every call and step the push by which it had ended, or -1; and which certainly ended as recorded.

    Third, the last call that each certainly made, or itself.
    """
    killed = _ended_by_the_next_of_their_root(pushes)
    parent, _ = parents(pushes.start, pushes.ends_before(killed))
    sure = pushes.inside(pushes.ended & (parent < 0) & (killed < 0))
    callers = elsewhere | _callers(pushes.kind, pushes.name, pushes.parent, sure)
    by_others = {name for name, caller in callers if caller != above[name]}
    proven = np.isin(pushes.thread, np.unique(pushes.thread[(killed >= 0) | clipped[pushes.row]]))
    foreign = (pushes.kind == _MODULE) & (np.append(pushes.kind, _STEP)[parent] == _MODULE) & ~pushes.of_caller(parent)
    foreign &= proven & ~sure & ~np.isin(pushes.name, list(by_others))
    cut = _ended_by_calls_from_outside(pushes, killed, parent, np.flatnonzero(foreign))
    parent, _ = parents(pushes.start, pushes.ends_before(cut))
    sure |= pushes.inside(pushes.ended & (killed < 0) & (((parent < 0) & (cut < 0)) | _followed(pushes, parent, sure)))
    return np.where(sure, -1, cut), sure, _last_called(pushes, parent)


def _ended_by_the_next_of_their_root(pushes: _Pushes) -> Rows:
    """For every call and step the push of its root, or of a step of its kind, by which it had ended; or -1.

    Such a push ends the one before it, if that has no earlier end, and all that were pushed since and are still open.
    """
    roots = np.flatnonzero(_roots(pushes.kind, pushes.above))
    inside = _inside_themselves(pushes.name[roots], pushes.start[roots], pushes.end[roots])
    again, before = roots[inside[0]], roots[inside[1]]
    cut = np.full(pushes.row.size, -1, dtype=np.int64)
    # As often as there are calls that were left open, which are few.
    for push, last in zip(again.tolist(), before.tolist(), strict=True):
        at = int(pushes.parent[push]) if cut[last] < 0 else -1
        while at >= last:
            cut[at] = push if cut[at] < 0 else cut[at]
            at = int(pushes.parent[at])
    return cut


def _ended_by_calls_from_outside(pushes: _Pushes, killed: Rows, parent: Rows, foreign: Rows) -> Rows:
    """For every call and step the push by which it had ended, also that of a call that only an outer one makes."""
    cut = killed.copy()
    # Views, because a loop asks arrays for single numbers slowly, and lists of all take long to make.
    cuts, outer, proof = cut.data, parent.copy().data, _last_called(pushes, pushes.parent).data
    kinds, names, aboves = pushes.kind.data, pushes.name.data, pushes.above.data
    for push in foreign.tolist():
        at, caller = outer[push], aboves[push]
        left: list[int] = []
        while at >= 0 and kinds[at] < _STEP and proof[at] <= push and len(left) < _MOST_LEFT_OPEN:
            if kinds[at] == _MODULE and names[at] == caller:
                break
            if not 0 <= cuts[at] <= push:
                left.append(at)
            at = outer[at]
        found = caller == _OUTERMOST or (at >= 0 and kinds[at] != _STEP)
        if found and len(left) < _MOST_LEFT_OPEN:
            for inner in left:
                cuts[inner], outer[inner] = push, at
    return cut


def _last_called(pushes: _Pushes, parent: Rows) -> Rows:
    """For every call the last one that it certainly made, which proves it open until then; or itself."""
    last = np.arange(parent.size)
    called = np.flatnonzero(pushes.of_caller(parent))
    np.maximum.at(last, parent[called], called)
    return last


def _followed(pushes: _Pushes, parent: Rows, sure: Flags) -> Flags:
    """Which are followed by a call that the same caller certainly made, with as much recorded as open around it."""
    rows = np.flatnonzero(~sure)
    _, group = distinct((pushes.parent[rows].astype(np.int64) + 1) * (sure.size + 1) + parent[rows] + 1)
    last = np.full(rows.size, -1, dtype=np.int64)
    called = pushes.of_caller(parent)[rows]
    np.maximum.at(last, group[called], rows[called])
    followed = np.zeros(sure.size, dtype=bool)
    followed[rows] = rows < last[group]
    return followed


def _doubts(axis: ThreadAxis, pushes: _Pushes, end: Ints, unsure: Flags, last_called: Rows) -> tuple[Ints, Ints, Rows]:
    """Stretches in which the innermost call may have ended: after the last call that it certainly made."""
    calls = np.flatnonzero(pushes.kind < _STEP)
    reach = np.maximum.accumulate(np.where(unsure[calls], end[pushes.row[calls]], _BEFORE_ALL))
    calls = calls[axis.range_start[pushes.row[calls]] < reach]
    calls = calls[nesting_order(axis.range_start[pushes.row[calls]], end[pushes.row[calls]])]
    start, until = axis.range_start[pushes.row[calls]], end[pushes.row[calls]]
    edges = np.sort(np.concatenate((start, until)), kind="stable")
    at = innermost(start, until, parents(start, until)[0], edges[:-1], edges[1:])
    proof = axis.range_start[pushes.row[last_called[calls]]]
    doubtful = (edges[1:] > edges[:-1]) & (at >= 0) & unsure[calls[at]] & (edges[:-1] >= proof[at])
    return edges[:-1][doubtful], edges[1:][doubtful], pushes.row[calls[at[doubtful]]]


def _end_steps(recording: Recording, axis: ThreadAxis, pushes: _Pushes, cut: Rows, end: Ints, end_ns: Ints) -> None:
    """Ends steps that were left open at the last pop of a range from within: that was meant for the step."""
    steps = np.flatnonzero((cut >= 0) & (pushes.kind == _STEP))
    if not steps.size:
        return
    popped = np.flatnonzero((recording.ranges.kind == PUSH_POP) & axis.ends_here & ~recording.ranges.open)
    pushed, ended = axis.range_start[popped], axis.range_end[popped]
    called = np.append(np.sort(axis.range_start[pushes.row[pushes.kind < _STEP]]), _BEFORE_ALL)
    for step in steps.tolist():
        start, until = axis.range_start[pushes.row[[step, cut[step]]]]
        last = max(called[np.searchsorted(called[:-1], until) - 1], start)
        within = np.arange(*np.searchsorted(pushed, (start, last + 1)))
        within = within[(ended[within] > last) & (ended[within] < until)]
        if within.size:
            at = popped[within[np.argmax(ended[within])]]
            end[pushes.row[step]], end_ns[pushes.row[step]] = axis.range_end[at], recording.ranges.end_ns[at]
