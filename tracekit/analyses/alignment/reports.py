"""The clocks of reports on one axis, and the groups of ranks that meet in collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracekit.analyses.alignment.collectives import Lane, same
from tracekit.analyses.alignment.matching import LEAST, Alike, Line, alike, line_between
from tracekit.arrays.types import Flags, Ints, Rows

#: The share of the collectives of two streams that must end together for these to be of one communicator; others may
#: be lost.
_OF_ONE = 0.6


class Met(NamedTuple):
    """Ranks in collectives, a row for each rank in each, with times on the clock of the reference and their error.

    Attributes:
        missing: Of each collective, how many ranks of its communicator have no record of it.
        lanes: The streams that rows refer to.
        unmatched: How many collectives of streams belong to none that is certain.
    """

    missing: Ints
    lanes: list[Lane]
    unmatched: int
    meeting: Rows
    lane: Rows
    event: Rows
    start: Ints
    end: Ints
    error: Ints


class _ShiftedLane(NamedTuple):
    """A stream on the clock of its reference."""

    at: int
    lane: Lane
    reference: int
    start: Ints
    end: Ints
    error: Ints


@dataclass(slots=True)
class _Group:
    """Streams of one communicator, and their collectives: the first stream's, and what it lacks of the others'."""

    reference: int
    lane: Lane
    end: Ints
    members: list[tuple[_ShiftedLane, Rows]] = field(default_factory=list)

    def has(self, lane: Lane) -> bool:
        """Whether a stream of the same GPU is a member: a GPU is in a communicator once."""
        return any(_gpu(one.lane) == _gpu(lane) for one, _ in self.members)

    def add(self, shifted: _ShiftedLane, one: Rows, other: Rows) -> None:
        """Adds a stream, whose collectives ``other`` are the group's ``one``."""
        meeting = np.full(shifted.end.size, -1, np.int64)
        meeting[other] = one
        new = np.flatnonzero(meeting < 0)
        meeting[new] = self.end.size + np.arange(new.size)
        self.end = np.concatenate([self.end, shifted.end[new]])
        self.lane = self.lane._replace(
            name=np.concatenate([self.lane.name, shifted.lane.name[new]]),
            start=np.concatenate([self.lane.start, shifted.start[new]]),
            end=self.end,
        )
        self.members.append((shifted, meeting))


def met(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Met:
    """The collectives in which at least two ranks are known to have met."""
    flat = [lane for own in lanes for lane in own]
    groups: list[_Group] = []
    alone = 0
    for shifted in sorted(
        (_shifted(at, lane, clocks[lane.report]) for at, lane in enumerate(flat)), key=_longest_first
    ):
        fitting = [*_fitting(groups, shifted)]
        if len(fitting) > 1:
            alone += shifted.end.size
        elif fitting:
            fitting[0][0].add(shifted, *fitting[0][1])
        else:
            lane = shifted.lane._replace(start=shifted.start, end=shifted.end)
            own = (shifted, np.arange(shifted.end.size))
            groups.append(_Group(shifted.reference, lane, shifted.end, [own]))
    alone += sum(group.end.size for group in groups if len(group.members) == 1)
    return _rows([group for group in groups if len(group.members) > 1], flat, alone)


def _shifted(at: int, lane: Lane, clock: Clock) -> _ShiftedLane:
    return _ShiftedLane(at, lane, clock.reference, clock.at(lane.start), clock.at(lane.end), clock.error(lane.end))


def _longest_first(shifted: _ShiftedLane) -> tuple[bool, int, int]:
    return shifted.lane.communicator is None, -shifted.end.size, shifted.at


def _gpu(lane: Lane) -> tuple[int, int, int]:
    return lane.report, lane.pid, lane.device


def _fitting(groups: list[_Group], shifted: _ShiftedLane) -> Iterator[tuple[_Group, tuple[Rows, Rows]]]:
    """The communicators that a stream may be of, and which collectives would be the same."""
    for group in groups:
        if group.reference != shifted.reference or group.has(shifted.lane):
            continue
        known = {group.lane.communicator, shifted.lane.communicator}
        if len(known) > 1 and None not in known:
            continue
        if not np.isin(shifted.lane.name, group.lane.name).any():
            continue
        match = same(group.lane, shifted.lane, (group.end, shifted.end))
        is_told = len(known) == 1 and None not in known
        enough = match.one.size >= LEAST and match.matched_share >= _OF_ONE and not match.contradicts_itself
        if enough or (is_told and match.one.size):
            yield group, (match.one, match.other)


def _rows(groups: list[_Group], flat: list[Lane], alone: int) -> Met:
    columns: list[list[Ints]] = [[] for _ in range(6)]
    missing: list[Ints] = []
    first = 0
    for group in groups:
        ranks = np.bincount(np.concatenate([meeting for _, meeting in group.members]), minlength=group.end.size)
        shared = ranks > 1
        alone += int((~shared).sum())
        number = np.where(shared, first + np.cumsum(shared) - 1, -1)
        for shifted, meeting in group.members:
            _append(columns, shifted, number[meeting])
        missing.append(len(group.members) - ranks[shared])
        first += int(shared.sum())
    empty = [np.zeros(0, np.int64)]
    joined = [np.concatenate(column or empty) for column in columns]
    return _possible(Met(np.concatenate(missing or empty), flat, alone, *joined))


def _append(columns: list[list[Ints]], shifted: _ShiftedLane, meeting: Rows) -> None:
    rows = np.flatnonzero(meeting >= 0)
    lane = np.full(rows.size, shifted.at, np.int64)
    values = (meeting[rows], lane, rows, shifted.start[rows], shifted.end[rows], shifted.error[rows])
    for column, own in zip(columns, values, strict=True):
        column.append(own)


def _possible(rows: Met) -> Met:
    """Without collectives that a rank would have ended before another began: these were taken for the same wrongly."""
    count = rows.missing.size
    latest, earliest = np.full(count, np.iinfo(np.int64).min), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(latest, rows.meeting, rows.start - rows.error)
    np.minimum.at(earliest, rows.meeting, rows.end + rows.error)
    kept: Flags = latest <= earliest
    if bool(kept.all()):
        return rows
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    inside = kept[rows.meeting]
    columns = [column[inside] for column in (rows.lane, rows.event, rows.start, rows.end, rows.error)]
    left_out = int((~inside).sum())
    return Met(rows.missing[kept], rows.lanes, rows.unmatched + left_out, number[rows.meeting[inside]], *columns)


#: With how many reports one is compared, and how many pairs of streams of each, before its clock stays apart.
_ANCHORS, _PAIRS = 16, 16

#: Why a clock stays apart.
NO_COLLECTIVES = "no collectives"
FEW_COLLECTIVES = f"fewer than {LEAST} collectives"
NOT_CERTAIN = "not certain which collectives are the same"


class _Stream(NamedTuple):
    """A stream, and how alike its steps are."""

    lane: Lane
    alike: Alike


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a report, as one of a group of clocks that are known against each other.

    ``over`` is the clock that it was compared with, and ``line`` leads to that; ``why`` is why it stays apart.
    """

    reference: int
    over: Clock | None = None
    line: Line | None = None
    matched: int = 0
    unmatched: int = 0
    why: str | None = None

    def at(self, time: Ints) -> Ints:
        """Times of the report on the clock of the reference."""
        for line in self._lines():
            time = line.at(time)
        return time

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be, in ns."""
        error = np.zeros(time.size, np.int64)
        for line in self._lines():
            error += line.error(time)
            time = line.at(time)
        return error

    def _lines(self) -> Iterator[Line]:
        clock: Clock | None = self
        while clock is not None:
            if clock.line is not None:
                yield clock.line
            clock = clock.over


def aligned(lanes: Sequence[Sequence[Lane]]) -> list[Clock]:
    """The clock of every report, given its streams; the reference is the one with the lowest rank."""
    clocks: dict[int, Clock] = {}
    streams = [[_Stream(lane, alike(lane)) for lane in own] for own in lanes]
    waiting = sorted(
        (at for at, own in enumerate(lanes) if max((lane.end.size for lane in own), default=0) >= LEAST),
        key=lambda at: (min((lane.rank for lane in lanes[at] if lane.rank >= 0), default=1 << 31), at),
    )
    while waiting:
        reference = waiting.pop(0)
        clocks[reference] = Clock(reference)
        waiting = _joined(streams, waiting, clocks, reference)
    few = {at: FEW_COLLECTIVES if own else NO_COLLECTIVES for at, own in enumerate(lanes) if at not in clocks}
    why = few | _alone(clocks)
    return [Clock(at, why=why[at]) if at in why else clocks[at] for at in range(len(lanes))]


def _alone(clocks: dict[int, Clock]) -> dict[int, str]:
    references = [clock.reference for clock in clocks.values()]
    return {at: NOT_CERTAIN for at in references if references.count(at) == 1 and len(clocks) > 1}


def _joined(
    streams: Sequence[Sequence[_Stream]], waiting: list[int], clocks: dict[int, Clock], reference: int
) -> list[int]:
    """Adds the clocks that can be measured against the reference, at once or over others; what is left."""
    group = [reference]
    while True:
        left = []
        for at in waiting:
            clock = _measured(streams, at, _anchors(group, at), clocks)
            if clock is None:
                left.append(at)
            else:
                clocks[at] = clock
                group.append(at)
        if len(left) == len(waiting):
            return left
        waiting = left


def _anchors(group: list[int], at: int) -> list[int]:
    near = sorted(group[1:], key=lambda other: abs(other - at))
    return [group[0], *near[: _ANCHORS - 1]]


def _measured(
    streams: Sequence[Sequence[_Stream]], at: int, anchors: list[int], clocks: dict[int, Clock]
) -> Clock | None:
    for anchor in anchors:
        for one, other in _pairs(streams[anchor], streams[at]):
            answer = line_between(one.lane, other.lane, tuple(map(max, one.alike, other.alike)))
            if answer is not None:
                line, match = answer
                return Clock(clocks[anchor].reference, clocks[anchor], line, int(match.one.size), match.unmatched)
    return None


def _pairs(one: Sequence[_Stream], other: Sequence[_Stream]) -> list[tuple[_Stream, _Stream]]:
    """Streams of two reports that may be of one communicator: those with equal ids, then those with equal numbers."""
    pairs = [(a, b) for a in one for b in other if min(a.lane.end.size, b.lane.end.size) >= LEAST and _agree(a, b)]

    def unlikely(pair: tuple[_Stream, _Stream]) -> tuple[bool, float]:
        a, b = pair[0].lane, pair[1].lane
        return a.communicator is None or b.communicator is None, abs(np.log(a.end.size / b.end.size))

    return sorted(pairs, key=unlikely)[:_PAIRS]


def _agree(one: _Stream, other: _Stream) -> bool:
    ids = one.lane.communicator, other.lane.communicator
    return None in ids or ids[0] == ids[1]
