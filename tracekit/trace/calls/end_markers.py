"""The second, empty range that hooks write when a call has ended: part of its call, not a call of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import depths, firsts, nesting_order, one_axis, parents, siblings_before
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers.base import Marker, ModuleMarker, StepMarker, Unreadable
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.calls.range_ends import RangeEnds
from tracekit.trace.decoding import Decoded


class EndMarkers(NamedTuple):
    """Which spans are not calls of their own.

    Attributes:
        second: Whether the span is the second range of a call.
        call: For these the call, or -1 where that is not in the report.
        marker: Row of the marker of every span; a call that could not be read has that of its second range.
    """

    second: Flags
    call: Rows
    marker: Rows


def end_markers(spans: Spans, decoded: Decoded) -> EndMarkers:
    """Tells the spans that only end a call from the calls themselves."""
    traits = MarkerTraits.of(spans, decoded)
    before = previous_sibling(spans)
    unreadable = decoded.rows(Unreadable).take(spans.marker)
    with_outputs = _with_outputs(spans, traits, before, unreadable)
    second, call = match_end_markers_without_outputs(spans, traits, before, with_outputs, decoded)
    call = _first_claims(call)
    closing = np.flatnonzero(call >= 0)
    named = closing[unreadable[call[closing]]]
    marker = spans.marker.copy()
    marker[call[named]] = marker[named]
    return EndMarkers(second, call, marker)


def _with_outputs(spans: Spans, traits: MarkerTraits, before: Rows, unreadable: Flags) -> tuple[Flags, Rows]:
    """Second ranges that record outputs, and for each the call that it closes, or -1."""
    second = traits.only_result & ~spans.encloses
    call = np.full(before.size, -1, dtype=np.int32)
    rows = np.flatnonzero(second)
    at = before[rows]
    fits = (at >= 0) & ~second[at] & ((traits.path[at] == traits.path[rows]) | unreadable[at])
    call[rows] = np.where(fits, at, -1)
    missed = rows[~fits]
    call[missed] = last_call_of_path(spans, second, traits.path, missed)
    call[after_other_work(spans, call)] = -1
    return second, call


def _first_claims(call: Rows) -> Rows:
    """Each call for the first span that claims it; later ones belong to calls that are not in the report."""
    rows = np.flatnonzero(call >= 0)
    if int(np.bincount(call[rows]).max(initial=0)) <= 1:
        return call
    kept = np.full(call.size, -1, dtype=np.int32)
    first = rows[np.unique(call[rows], return_index=True)[1]]
    kept[first] = call[first]
    return kept


def match_end_markers_without_outputs(
    spans: Spans, traits: MarkerTraits, before: Rows, seconds: tuple[Flags, Rows], decoded: Decoded
) -> tuple[Flags, Rows]:
    """Adds second ranges that record no outputs to those by outputs, given the sibling before each span, or -1."""
    second, call = seconds
    closed = np.zeros(call.size + 1, dtype=bool)
    closed[call] = True
    # A span that has a second range of its own is a call.
    tensorless = np.flatnonzero(traits.has_no_tensors & ~spans.encloses & ~closed[:-1])
    if not tensorless.size:
        return second, call
    candidate = _candidates(spans, traits, before, second, tensorless)
    candidate[closed[candidate]] = -1
    matched = np.zeros(call.size, dtype=bool)
    followed = tensorless[candidate[tensorless] >= 0]
    calls, bare = candidate[followed], decoded.canonical_marker[spans.marker]
    alike = agree(bare[followed], bare[calls], decoded.bare)
    matched[followed] = alike & ~(traits.has_no_tensors | traits.only_result)[calls]
    closed[candidate[matched]] = True
    matched &= _mostly_closed(spans, traits, second | matched, closed[:-1])[spans.process]
    seconds = second | matched, np.where(matched, candidate, call)
    return match_identical_pairs(spans, traits, candidate, seconds)


def _candidates(spans: Spans, traits: MarkerTraits, before: Rows, second: Flags, tensorless: Rows) -> Rows:
    """For every tensorless span the call of the same path right before it, or -1; -1 for all others."""
    candidate = np.full(before.size, -1, dtype=np.int32)
    candidate[tensorless] = before[tensorless]
    fits = (candidate >= 0) & ~second[candidate] & (traits.path[candidate] == traits.path)
    candidate[~fits] = -1
    missed = tensorless[candidate[tensorless] < 0]
    empty = traits.has_no_tensors & (spans.start == spans.end)
    candidate[missed] = last_call_of_path(spans, second | empty, traits.path, missed)
    candidate[after_other_work(spans, candidate)] = -1
    return candidate


def _mostly_closed(spans: Spans, traits: MarkerTraits, second: Flags, closed: Flags) -> Flags:
    """For every process whether at least half of its calls that record tensors have a second range."""
    calls = np.flatnonzero(traits.placed & ~traits.has_no_tensors & ~second & ~spans.excused)
    process, processes = spans.process[calls], int(spans.process.max(initial=0)) + 1
    ended, all_ = (np.bincount(rows, minlength=processes) for rows in (process[closed[calls]], process))
    return np.asarray(2 * ended >= all_)


#: So many calls that were each followed by an equal, empty range show that all are.
_ENOUGH_PAIRS = 2
#: A forward that raised has no second range: one of so many calls may lack it.
_SELDOM = 5


class _Runs(NamedTuple):
    """Runs of equal spans, each the sibling after the one before; ``odd`` if an odd number of them is before a span."""

    first: Rows
    length: Ints
    odd: Flags

    def none_in(self, rows: Flags) -> Flags:
        """For every span whether none of the chosen rows are in its run."""
        return np.asarray(np.bincount(self.first[rows], minlength=self.first.size)[self.first] == 0)


def match_identical_pairs(
    spans: Spans, traits: MarkerTraits, before: Rows, seconds: tuple[Flags, Rows]
) -> tuple[Flags, Rows]:
    """Adds second ranges that are equal to their calls, given the last call of its path before each span, or -1."""
    second, call = seconds
    ended = _ended(call)
    pending = traits.has_no_tensors & ~second & ~ended
    before = np.where(pending & (spans.marker[before] == spans.marker) & pending[before], before, -1)
    runs = _runs(before)
    leading = (_first_of_path(spans, traits.path) & _outermost(spans))[runs.first] & ~spans.excused
    even = runs.length % 2 == 0
    busy = pending & spans.encloses
    closing_first = pending & leading & ~even & runs.none_in(busy & ~runs.odd)
    in_turn = pending & even & runs.none_in(busy & runs.odd)
    unpaired = traits.placed & ~second & ~ended & ~(in_turn | closing_first | spans.excused)
    always = _with_a_second_range_each(spans, call, in_turn, unpaired)
    closes = always[spans.process] & ((in_turn & runs.odd) | (closing_first & ~runs.odd))
    return second | closes, np.where(closes, before, call)


def _ended(call: Rows) -> Flags:
    ended = np.zeros(call.size + 1, dtype=bool)
    ended[call] = True
    return ended[:-1]


def _runs(before: Rows) -> _Runs:
    first = firsts(before)
    return _Runs(first, np.bincount(first, minlength=first.size)[first], depths(before) % 2 == 1)


def _with_a_second_range_each(spans: Spans, call: Rows, in_turn: Flags, unpaired: Flags) -> Flags:
    """For every process whether calls have second ranges throughout, but for the few whose forward raised."""
    processes = int(spans.process.max(initial=0)) + 1
    closed, pairs, without = (
        np.bincount(spans.process[rows], minlength=processes)
        for rows in (call >= 0, in_turn & spans.encloses, unpaired)
    )
    return ((closed > 0) | (pairs >= _ENOUGH_PAIRS)) & (without * _SELDOM <= closed + pairs)


def _outermost(spans: Spans) -> Flags:
    around = spans.parent.copy()
    while (touched := (around >= 0) & (spans.end[around] == spans.start)).any():
        around[touched] = spans.parent[around[touched]]
    return np.asarray(around < 0)


def _first_of_path(spans: Spans, path: Ints) -> Flags:
    first = np.zeros(path.size, dtype=bool)
    _, rows = np.unique(spans.thread.astype(np.int64) * (path.max(initial=0) + 2) + path, return_index=True)
    first[rows] = True
    return first


class MarkerTraits(NamedTuple):
    """What the marker of every span records.

    Attributes:
        path: A number, the same where the path is; -1 where the marker has none.
        only_result: Whether it records outputs and no inputs.
        placed: Whether it belongs to a call of which more than the class is known.
    """

    path: Ints
    only_result: Flags
    has_no_tensors: Flags
    placed: Flags

    @staticmethod
    def of(spans: Spans, decoded: Decoded) -> MarkerTraits:
        """Looks up the marker of every span."""
        calls = [marker if isinstance(marker, ModuleMarker) else None for marker in decoded.bare]
        only_result = [call is not None and call.only_result for call in calls]
        placed = [call is not None and not (call.class_only or call.only_result) for call in calls]
        complete = [call is not None and call.has_no_tensors for call in calls]
        empty = [not any(tensors) for tensors in decoded.tensors]
        # First of the markers, of which there are fewer than spans.
        bare = decoded.canonical_marker
        of_marker = [np.array([*column, False])[bare] for column in (only_result, complete, placed)]
        of_marker[1] &= np.array([*empty, False])[decoded.tensors_of]
        return MarkerTraits(*(column.take(spans.marker) for column in (decoded.path, *of_marker)))


def agree(left: Rows, right: Rows, markers: list[Marker]) -> Flags:
    """Which markers say the same of their modules as others do; each distinct pair is compared once."""
    pairs, pair = np.unique(left.astype(np.int64) * len(markers) + right, return_inverse=True)
    if not pairs.size:
        return np.empty(0, dtype=bool)
    answers = [_agree(markers[code // len(markers)], markers[code % len(markers)]) for code in pairs.tolist()]
    return np.array(answers, dtype=bool)[pair]


def _agree(left: Marker, right: Marker) -> bool:
    return (
        isinstance(left, ModuleMarker)
        and isinstance(right, ModuleMarker)
        and (left.path, left.params, left.static_params, left.class_name, left.phase)
        == (right.path, right.params, right.static_params, right.class_name, right.phase)
    )


def previous_sibling(spans: Spans) -> Rows:
    """For every span the one before it on its thread that lies in the same span, or in none; or -1."""
    previous = siblings_before(spans.depth)
    outermost = np.flatnonzero(spans.parent < 0)
    # The first of each thread.
    previous[outermost[spans.thread[outermost] != spans.thread[previous[outermost]]]] = -1
    return previous


def last_call_of_path(spans: Spans, second: Flags, path: Ints, rows: Rows) -> Rows:
    """For some spans the call of the same path (a number) on their thread that ended last before them, or -1.

    That is the sibling before in all but coarse time, where a call, its second range and that of its caller share a
    tick.
    """
    calls = np.flatnonzero(~second & (path >= 0))
    if not rows.size or not calls.size:
        return np.full(rows.size, -1, dtype=np.int64)
    ended, began = one_axis([path[calls], path[rows]], [spans.end[calls], spans.start[rows]])
    order = np.argsort(ended, kind="stable")
    position = np.searchsorted(ended[order], began, side="right") - 1
    call = np.where(position >= 0, calls[order[position]], -1)
    same = (path[call] == path[rows]) & (spans.thread[call] == spans.thread[rows])
    call_start = spans.start[~second]
    called_between = np.searchsorted(call_start, spans.start[rows]) > np.searchsorted(call_start, spans.end[call])
    return np.where((call >= 0) & same & ~called_between, call, -1)


def after_other_work(spans: Spans, call: Rows) -> Rows:
    """Spans before which work was launched, or a step began, since the call had ended that they may close."""
    rows = np.flatnonzero(call >= 0)
    return rows[spans.happened[rows] >= spans.end[call[rows]]]


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


def spans_of(
    recording: Recording, decoded: Decoded, axis: ThreadAxis, ends: RangeEnds, marker: Ints, works: Flags
) -> Spans:
    """Finds the marked ranges; ``works`` are the launches that put work on a device or into a graph."""
    marked = decoded.rows(ModuleMarker, Unreadable)[marker] & axis.ends_here
    rows, start, end = _outer_first(np.flatnonzero(marked).astype(np.int32), axis, ends, marker, decoded)
    parent, depth = parents(start, end)
    thread = recording.ranges.thread[rows]
    worked = axis.launch_start[works]
    step_start = np.sort(axis.range_start[decoded.ranges(recording, StepMarker) & axis.ends_here])
    never, began = np.iinfo(np.int64), _starts_between(start, worked)
    happened = np.repeat(np.append(never.min, worked), began)
    last_step = np.repeat(np.append(never.min, step_start), _starts_between(start, step_start))
    encloses = np.repeat(np.append(worked, never.max), began) < end
    return Spans(
        range_row=rows,
        start=start,
        end=end,
        thread=thread,
        process=recording.threads.process.astype(np.int32).take(thread),
        marker=marker[rows],
        parent=parent,
        depth=depth,
        encloses=encloses | _with_a_call_inside(start, end, parent),
        happened=np.maximum(happened, last_step, out=happened),
        excused=recording.ranges.open[rows] | ends.in_doubt(end),
        worked=worked,
    )


def _outer_first(
    rows: Ints, axis: ThreadAxis, ends: RangeEnds, marker: Ints, decoded: Decoded
) -> tuple[Rows, Ints, Ints]:
    """Rows, starts and ends of ranges; of those of equal extent, the one with the shorter path is the outer call."""
    start, end = axis.range_start.take(rows), ends.end.take(rows)
    if ends.as_recorded and not bool(((start[1:] == start[:-1]) & (end[1:] == end[:-1])).any()):
        return rows, start, end
    parts = np.array([*(path.count(".") + 1 for path in decoded.paths), 0])[decoded.path]
    order = nesting_order(start, end, parts.take(marker[rows]))
    return rows[order], start[order], end[order]


def _starts_between(start: Ints, times: Ints) -> Ints:
    """How many starts lie before each of some times, but not before the one before it, and after all; all ascending."""
    # Times are fewer than spans, so each is looked for among the starts, not the other way round.
    return np.diff(np.searchsorted(start, times, side="right"), prepend=0, append=start.size)


def _with_a_call_inside(start: Ints, end: Ints, parent: Rows) -> Flags:
    within = parent >= 0
    # With a coarse clock, an empty range right after a call seems to lie at the end of the call.
    empty = np.flatnonzero(start == end)
    within[empty[end[parent[empty]] == end[empty]]] = False
    inside = np.zeros(start.size, dtype=bool)
    inside[parent[within]] = True
    return inside
