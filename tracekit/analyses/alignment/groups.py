"""Which ranks met in each collective, and when each of them began it, on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.analyses.alignment.matching import LEAST
from tracekit.analyses.alignment.pairs import same

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.analyses.alignment.collectives import Lane
    from tracekit.analyses.alignment.reports import Clock
    from tracekit.arrays.types import Flags, Ints, Rows

#: The share of the collectives of two streams that must end together for these to be of one communicator; others may
#: be lost.
_OF_ONE = 0.6


class Met(NamedTuple):
    """Ranks in collectives, a row for each rank in each.

    Attributes:
        missing: Of each collective, how many ranks of its communicator have no record of it.
        lanes: The streams that rows refer to.
        unmatched: How many collectives of streams belong to none that is certain.
        meeting: The collective.
        lane: The stream, as a place among all.
        event: The place in the stream.
        start: When the rank began, on the clock of the reference.
        end: When it ended.
        error: How far from the truth these may be.
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


class _Placed(NamedTuple):
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
    members: list[tuple[_Placed, Rows]] = field(default_factory=list)

    def has(self, lane: Lane) -> bool:
        """Whether a stream of the same GPU is a member: a GPU is in a communicator once."""
        return any(_gpu(one.lane) == _gpu(lane) for one, _ in self.members)

    def add(self, placed: _Placed, one: Rows, other: Rows) -> None:
        """Adds a stream, whose collectives ``other`` are the group's ``one``."""
        meeting = np.full(placed.end.size, -1, np.int64)
        meeting[other] = one
        new = np.flatnonzero(meeting < 0)
        meeting[new] = self.end.size + np.arange(new.size)
        self.end = np.concatenate([self.end, placed.end[new]])
        self.lane = self.lane._replace(
            name=np.concatenate([self.lane.name, placed.lane.name[new]]),
            start=np.concatenate([self.lane.start, placed.start[new]]),
            end=self.end,
        )
        self.members.append((placed, meeting))


def met(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Met:
    """The collectives in which at least two ranks are known to have met."""
    flat = [lane for own in lanes for lane in own]
    groups: list[_Group] = []
    alone = 0
    for placed in sorted((_placed(at, lane, clocks[lane.report]) for at, lane in enumerate(flat)), key=_longest_first):
        fitting = [(group, match) for group, match in _fitting(groups, placed)]
        if len(fitting) > 1:
            alone += placed.end.size
        elif fitting:
            fitting[0][0].add(placed, *fitting[0][1])
        else:
            groups.append(_new(placed))
    alone += sum(group.end.size for group in groups if len(group.members) == 1)
    return _rows([group for group in groups if len(group.members) > 1], flat, alone)


def _placed(at: int, lane: Lane, clock: Clock) -> _Placed:
    return _Placed(at, lane, clock.reference, clock.at(lane.start), clock.at(lane.end), clock.error(lane.end))


def _longest_first(placed: _Placed) -> tuple[bool, int, int]:
    return placed.lane.communicator is None, -placed.end.size, placed.at


def _new(placed: _Placed) -> _Group:
    group = _Group(placed.reference, placed.lane._replace(start=placed.start, end=placed.end), placed.end)
    group.members.append((placed, np.arange(placed.end.size)))
    return group


def _gpu(lane: Lane) -> tuple[int, int, int]:
    return lane.report, lane.pid, lane.device


def _fitting(groups: list[_Group], placed: _Placed) -> Iterator[tuple[_Group, tuple[Rows, Rows]]]:
    """The communicators that a stream may be of, and which collectives would be the same."""
    for group in groups:
        if group.reference != placed.reference or group.has(placed.lane):
            continue
        known = {group.lane.communicator, placed.lane.communicator}
        if len(known) > 1 and None not in known:
            continue
        if not np.isin(placed.lane.name, group.lane.name).any():
            continue
        match = same(group.lane, placed.lane, (group.end, placed.end))
        is_told = len(known) == 1 and None not in known
        enough = match.one.size >= LEAST and match.matched_share >= _OF_ONE and not match.contradicts_itself
        if enough or (is_told and match.one.size):
            yield group, (match.one, match.other)


def _rows(groups: list[_Group], flat: list[Lane], alone: int) -> Met:
    """All members of all collectives that at least two ranks record."""
    columns: list[list[Ints]] = [[] for _ in range(6)]
    missing: list[Ints] = []
    first = 0
    for group in groups:
        ranks = np.bincount(np.concatenate([meeting for _, meeting in group.members]), minlength=group.end.size)
        shared = ranks > 1
        alone += int((~shared).sum())
        number = np.where(shared, first + np.cumsum(shared) - 1, -1)
        for placed, meeting in group.members:
            _append(columns, placed, number[meeting])
        missing.append(len(group.members) - ranks[shared])
        first += int(shared.sum())
    empty = [np.zeros(0, np.int64)]
    joined = [np.concatenate(column or empty) for column in columns]
    return _possible(Met(np.concatenate(missing or empty), flat, alone, *joined))


def _append(columns: list[list[Ints]], placed: _Placed, meeting: Rows) -> None:
    rows = np.flatnonzero(meeting >= 0)
    lane = np.full(rows.size, placed.at, np.int64)
    values = (meeting[rows], lane, rows, placed.start[rows], placed.end[rows], placed.error[rows])
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
