"""The second, empty range that hooks write when a call has ended: part of its call, and no call of its own.

Mostly it tells ``Outputs``. vLLM's hooks leave these out where they find no tensors (a dataclass, a dict, None); then
it says what the call's range says without inputs, or just the same if that tells none either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import depths, firsts, one_axis
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.trace.decoding import paths_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.trace.decoding import Decoded

#: So many calls of which each was followed by an equal, empty range show that all are.
_ENOUGH_PAIRS = 2
#: A forward that raised has no second range: of so many calls, one may lack it.
_SELDOM = 5


class Spans(NamedTuple):
    """Marked ranges.

    Attributes:
        start: Start on the axis.
        end: End on the axis.
        thread: Row of threads.
        process: Row of processes.
        marker: Row of the decoded markers.
        parent: The one around it, or -1.
        depth: How many are around it.
        encloses: Whether a call or the launch of some work lies inside.
        launched_before: How many launches of work began before it began.
        launched_until: How many launches of work began before it ended.
        steps_before: How many marked steps began before it began.
        steps_until: How many marked steps began before it ended.
        excused: Whether it was left open, or never ended.
    """

    start: Ints
    end: Ints
    thread: Rows
    process: Rows
    marker: Rows
    parent: Rows
    depth: Ints
    encloses: Flags
    launched_before: Ints
    launched_until: Ints
    steps_before: Ints
    steps_until: Ints
    excused: Flags


@dataclass(frozen=True, slots=True)
class SecondRanges:
    """Which marked ranges are no calls of their own.

    Attributes:
        second: Whether it is the second range of a call.
        call: For these the call, or -1 where that is not in the report.
        marker: Row of each range's marker, in which a call that could not be read has got the name that its second
            range says.
    """

    second: Flags
    call: Rows
    marker: Rows


def second_ranges(spans: Spans, decoded: Decoded) -> SecondRanges:
    """Tells the ranges that only end a call from the calls themselves."""
    said = _Said.of(spans, decoded)
    loud = said.only_result & ~spans.encloses
    before = _previous_sibling(spans.parent, spans.thread)
    call = np.where(loud, before, -1)
    unreadable = decoded.rows(Unreadable)[spans.marker]
    fits = (call >= 0) & ~loud[call] & ((said.path[call] == said.path) | unreadable[call])
    call[~fits] = -1
    missed = np.flatnonzero(loud & (call < 0))
    call[missed] = _last_of_path(spans, loud, said.path, missed)
    call[_worked_between(spans, call)] = -1
    second, call = _with_silent(spans, said, before, (loud, call), decoded.markers)
    call = _first_claims(call)
    named = np.flatnonzero((call >= 0) & unreadable[call])
    marker = spans.marker.copy()
    marker[call[named]] = marker[named]
    return SecondRanges(second, call, marker)


class _Said(NamedTuple):
    """What the marker of each range says.

    Attributes:
        path: A number, the same where the path is; -1 where it says none.
        only_result: Whether it tells outputs and no inputs.
        quiet: Whether it tells no tensors at all.
        placed: Whether it is a call's range of which more than the class is said.
    """

    path: Ints
    only_result: Flags
    quiet: Flags
    placed: Flags

    @staticmethod
    def of(spans: Spans, decoded: Decoded) -> _Said:
        """What the markers say."""
        columns = [(False, False, False)] * (len(decoded.markers) + 1)
        for row, marker in enumerate(decoded.markers):
            if isinstance(marker, ModuleMarker):
                placed = not (marker.class_only or marker.only_result)
                columns[row] = marker.only_result, marker.quiet, placed
        path = np.append(paths_of(decoded.markers), -1)
        return _Said(path[spans.marker], *np.array(columns)[spans.marker].T)


def _says_less(less: Marker, more: Marker) -> bool:
    """Whether a marker says what another does, but for its tensors."""
    return (
        isinstance(less, ModuleMarker)
        and isinstance(more, ModuleMarker)
        and less.quiet
        and not (more.quiet or more.only_result)
        and (less.path, less.params, less.static_params, less.class_name, less.phase)
        == (more.path, more.params, more.static_params, more.class_name, more.phase)
    )


def _with_silent(
    spans: Spans, said: _Said, before: Rows, loud: tuple[Flags, Rows], markers: list[Marker]
) -> tuple[Flags, Rows]:
    """Adds second ranges that tell no outputs.

    Args:
        spans: The marked ranges.
        said: What their markers say.
        before: For each the one before it under the same parent, or -1.
        loud: Which ranges are second ones by their outputs, and of which calls.
        markers: The decoded markers.
    """
    second, call = loud
    taken = np.zeros(call.size + 1, dtype=bool)
    taken[call] = True
    # What has a second range of its own is a call.
    silent = np.flatnonzero(said.quiet & ~spans.encloses & ~taken[:-1])
    if not silent.size:
        return second, call
    candidate = np.full(call.size, -1, dtype=np.int64)
    candidate[silent] = before[silent]
    fits = (candidate >= 0) & ~second[candidate] & (said.path[candidate] == said.path)
    candidate[~fits] = -1
    missed = silent[candidate[silent] < 0]
    brief = said.quiet & (spans.start == spans.end)
    candidate[missed] = _last_of_path(spans, second | brief, said.path, missed)
    candidate[_worked_between(spans, candidate)] = -1
    candidate[taken[candidate]] = -1
    lost = np.zeros(call.size, dtype=bool)
    followed = silent[candidate[silent] >= 0]
    lost[followed] = _per_pair(spans.marker[followed], spans.marker[candidate[followed]], markers)
    lost &= _mostly_ended(spans, said, second | lost, np.where(lost, candidate, call))
    second, call = second | lost, np.where(lost, candidate, call)
    return _in_pairs(spans, said, candidate, (second, call))


def _mostly_ended(spans: Spans, said: _Said, second: Flags, call: Rows) -> Flags:
    """Which ranges are of processes in which as many calls that tell tensors have a second range as have none."""
    ended = np.zeros(call.size + 1, dtype=bool)
    ended[call] = True
    calls = said.placed & ~said.quiet & ~second & ~spans.excused
    number = int(spans.process.max(initial=0)) + 1
    balance = np.zeros(number, dtype=np.int64)
    np.add.at(balance, spans.process[calls], np.where(ended[:-1][calls], 1, -1))
    return np.asarray((balance >= 0)[spans.process])


def _per_pair(less: Rows, more: Rows, markers: list[Marker]) -> Flags:
    """Which of some markers say less than their counterparts; asked once for every distinct pair."""
    pairs, which = np.unique(less.astype(np.int64) * len(markers) + more, return_inverse=True)
    found = [_says_less(markers[pair // len(markers)], markers[pair % len(markers)]) for pair in pairs.tolist()]
    return np.array(found, dtype=bool)[which] if found else np.empty(0, dtype=bool)


def _in_pairs(spans: Spans, said: _Said, before: Rows, known: tuple[Flags, Rows]) -> tuple[Flags, Rows]:
    """Adds second ranges that say just what the call's says, in processes in which every call has a second range.

    Equal ranges in a row are calls and their ends in turn if every other one is empty. One more in the beginning, the
    first of its path on its thread, is the end of a call from before the recording.

    Args:
        spans: The marked ranges.
        said: What their markers say.
        before: For ranges that tell no tensors the last of the same path, or -1.
        known: The second ranges that are known, and of which calls.
    """
    second, call = known
    ended = np.zeros(second.size + 1, dtype=bool)
    ended[call] = True
    quiet = said.quiet & ~second & ~ended[:-1]
    before = np.where(quiet & (spans.marker[before] == spans.marker) & quiet[before], before, -1)
    place = depths(before)
    first = firsts(before)
    number = np.bincount(first, minlength=first.size)[first]
    wrong = [
        np.bincount(first[quiet & spans.encloses & (place % 2 == side)], minlength=first.size)[first] for side in (0, 1)
    ]
    leading = (_first_of_path(spans, said.path) & _outermost(spans))[first]
    late = quiet & leading & (wrong[0] == 0) & (number % 2 == 1) & ~spans.excused
    paired = quiet & (wrong[1] == 0) & (number % 2 == 0)
    alone = said.placed & ~second & ~ended[:-1] & ~(paired | late | spans.excused)
    processes = int(spans.process.max(initial=0)) + 1
    told = np.bincount(spans.process[call >= 0], minlength=processes)
    shown = np.bincount(spans.process[paired & spans.encloses], minlength=processes)
    without = np.bincount(spans.process[alone], minlength=processes)
    always = ((told > 0) | (shown >= _ENOUGH_PAIRS)) & (without * _SELDOM <= told + shown)
    ends = always[spans.process] & ((paired & (place % 2 == 1)) | (late & (place % 2 == 0)))
    return second | ends, np.where(ends, before, call)


def _outermost(spans: Spans) -> Flags:
    """Which ranges lie in no other; an empty one at the end of another lies behind it."""
    around = spans.parent.copy()
    while (touched := (around >= 0) & (spans.end[around] == spans.start)).any():
        around[touched] = spans.parent[around[touched]]
    return np.asarray(around < 0)


def _first_of_path(spans: Spans, path: Ints) -> Flags:
    """Which ranges are the first of their path on their thread."""
    found = np.zeros(path.size, dtype=bool)
    _, first = np.unique(spans.thread.astype(np.int64) * (path.max(initial=0) + 2) + path, return_index=True)
    found[first] = True
    return found


def _worked_between(spans: Spans, call: Rows) -> Rows:
    """Ranges before which work was launched, or a step began, after their call had ended."""
    rows = np.flatnonzero(call >= 0)
    worked = spans.launched_before[rows] > spans.launched_until[call[rows]]
    return rows[worked | (spans.steps_before[rows] > spans.steps_until[call[rows]])]


def _last_of_path(spans: Spans, second: Flags, path: Ints, rows: Rows) -> Rows:
    """For some ranges the call of the same path on their thread that ended last before, or -1.

    It is the one before in all but coarse time, where a call, its second range and that of its caller share a tick.
    """
    calls = np.flatnonzero(~second & (path >= 0))
    if not rows.size or not calls.size:
        return np.full(rows.size, -1, dtype=np.int64)
    ended, asked = one_axis([path[calls], path[rows]], [spans.end[calls], spans.start[rows]])
    order = np.argsort(ended, kind="stable")
    at = np.searchsorted(ended[order], asked, side="right") - 1
    found = np.where(at >= 0, calls[order[at]], -1)
    same = (path[found] == path[rows]) & (spans.thread[found] == spans.thread[rows])
    begun = spans.start[~second]
    called_between = np.searchsorted(begun, spans.start[rows]) > np.searchsorted(begun, spans.end[found])
    return np.where((found >= 0) & same & ~called_between, found, -1)


def _first_claims(call: Rows) -> Rows:
    """Each call for the first range that claims it only; later ones have lost theirs."""
    rows = np.flatnonzero(call >= 0)
    if int(np.bincount(call[rows]).max(initial=0)) <= 1:
        return call
    kept = np.full(call.size, -1, dtype=np.int64)
    first = rows[np.unique(call[rows], return_index=True)[1]]
    kept[first] = call[first]
    return kept


def _previous_sibling(parent: Ints, thread: Ints) -> Ints:
    """For every row the row before it on its thread that has the same parent, or -1."""
    order = np.argsort(parent, kind="stable")
    previous = np.full(parent.size, -1, dtype=np.int64)
    same = (parent[order[1:]] == parent[order[:-1]]) & (thread[order[1:]] == thread[order[:-1]])
    previous[order[1:][same]] = order[:-1][same]
    return previous
