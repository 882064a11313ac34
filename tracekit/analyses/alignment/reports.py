"""The clocks of reports on one axis, and the groups of ranks that meet in collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.analyses.alignment.collectives import Lane, same
from tracekit.analyses.alignment.matching import LEAST, Alike, Line, alike, comparable, line_between
from tracekit.arrays.types import Flags, Ints, Rows

#: The share of the collectives of two streams at one place that must end together for these to be of one communicator;
#: others may be lost.
_OF_ONE = 0.6
#: So few collectives at one place could end together by chance in every step.
_LEAST_AT_PLACE = 4


class Met(NamedTuple):
    """Ranks in collectives, a row for each rank in each, with times on the clock of the reference and their error.

    Attributes:
        missing: Of each collective, how many GPUs are, or may be, of its communicator and have no record of it.
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


_Gpu: TypeAlias = tuple[int, int, int]
#: What identifies a part: the id of its communicator, its module, or (module -1) only the name of its kernel.
_TOLD, _IN_MODULE, _BY_NAME = range(3)


class _Part(NamedTuple):
    """Collectives of a stream that are of one communicator, on the clock of the reference.

    ``place`` is that of the program where they ran: the communicator if recorded, else module and name; ``rows`` are
    their places in the stream.
    """

    at: int
    gpu: _Gpu
    reference: int
    place: tuple[object, ...]
    known_by: int
    rows: Rows
    lane: Lane
    error: Ints


@dataclass(slots=True)
class _Group:
    """Parts of one communicator, and their collectives: those of the first part, and what it lacks of the others'."""

    lane: Lane
    members: list[tuple[_Part, Rows]]

    def add(self, part: _Part, one: Rows, other: Rows) -> None:
        """Adds a part: its collectives ``other`` are the group's ``one``."""
        meeting = np.full(part.rows.size, -1, np.int64)
        meeting[other] = one
        new = np.flatnonzero(meeting < 0)
        meeting[new] = self.lane.end.size + np.arange(new.size)
        columns = [np.concatenate([ours, its[new]]) for ours, its in zip(self.lane[5:8], part.lane[5:8], strict=True)]
        self.lane = self.lane._replace(name=columns[0], start=columns[1], end=columns[2])
        self.members.append((part, meeting))


def met(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Met:
    """The collectives in which at least two ranks are known to have met.

    Communicators can share a stream. Those at one place of the program (module and kernel) are of one communicator if
    they agree in all steps on who met, unless ids record it.
    """
    flat = [lane for own in lanes for lane in own]
    parts = [part for at, lane in enumerate(flat) for part in _parts(at, lane, clocks[lane.report])]
    by_place: dict[tuple[object, ...], list[_Group]] = {}
    for part in sorted(parts, key=lambda part: (-part.rows.size, part.at)):
        groups = by_place.setdefault((part.reference, *part.place), [])
        fitting = [*_fitting(groups, part)]
        if len(fitting) == 1:
            fitting[0][0].add(part, *fitting[0][1])
        elif not fitting:
            groups.append(_Group(part.lane, [(part, np.arange(part.rows.size))]))
    several = [group for groups in by_place.values() for group in groups if len(group.members) > 1]
    return _rows(several, flat, _Absent(parts, several, clocks))


def _parts(at: int, lane: Lane, clock: Clock) -> Iterator[_Part]:
    whole = lane._replace(start=clock.at(lane.start), end=clock.at(lane.end))
    error, gpu = clock.error(lane.end), (lane.report, lane.pid, lane.device)
    if lane.communicator is not None:
        yield _Part(at, gpu, clock.reference, (lane.communicator,), _TOLD, np.arange(error.size), whole, error)
        return
    places, place = np.unique(np.stack([lane.module_id, lane.name]), axis=1, return_inverse=True)
    for number, (module, name) in enumerate(places.T.tolist()):
        rows = np.flatnonzero(place.ravel() == number)
        own = Lane(*whole[:5], *(column[rows] for column in whole[5:]))
        known_by = _BY_NAME if module < 0 else _IN_MODULE
        yield _Part(at, gpu, clock.reference, (module, name), known_by, rows, own, error[rows])


def _fitting(groups: list[_Group], part: _Part) -> Iterator[tuple[_Group, tuple[Rows, Rows]]]:
    """The groups at its place that a part may be of, and which collectives would be the same."""
    for group in groups:
        if any(one.gpu == part.gpu for one, _ in group.members):  # a GPU is in a communicator once
            continue
        match = same(group.lane, part.lane, (group.lane.end, part.lane.end))
        enough = match.one.size >= _LEAST_AT_PLACE and match.matched_share >= _OF_ONE and not match.contradicts_itself
        if enough or (part.known_by == _TOLD and match.one.size):
            yield group, (match.one, match.other)


class _Absent:
    """Which GPUs may have been in a collective though no record of theirs is known to be of it."""

    def __init__(self, parts: list[_Part], groups: list[_Group], clocks: Sequence[Clock]) -> None:
        self._placed = {id(part) for group in groups for part, _ in group.members}
        self._at: dict[tuple[object, ...], list[_Part]] = {}
        self._named: dict[tuple[int, int], set[_Gpu]] = {}
        self._covered: dict[_Gpu, list[int]] = {}
        for part in parts:
            self._at.setdefault(part.place, []).append(part)
            for name in np.unique(part.lane.name).tolist():
                self._named.setdefault((name, part.known_by), set()).add(part.gpu)
            first, last = part.lane.end[[0, -1]].tolist()
            start, end, _ = self._covered.get(part.gpu, (first, last, 0))
            self._covered[part.gpu] = [min(start, first), max(end, last), part.reference]
        self._apart = [
            [clock.reference for clock in clocks if clock.why == why] for why in (FEW_COLLECTIVES, NOT_CERTAIN)
        ]

    def from_group(self, group: _Group) -> Ints:
        """How many other ranks may have joined each collective of a group."""
        first = group.members[0][0]
        here = self._at[first.place]
        unclear = {part.gpu for part in here if part.reference != first.reference or id(part) not in self._placed}
        # What another rank knows of its collectives may be less, such as no modules.
        known_else = {first.known_by} ^ {_TOLD, _IN_MODULE, _BY_NAME}
        names = np.unique(group.lane.name).tolist()
        alike = set[_Gpu]().union(*(self._named.get((name, by), ()) for name in names for by in known_else))
        inside = {part.gpu for part, _ in group.members}
        # Within a report all have one clock, whatever it is against those of others.
        few, uncertain = (sum(one != first.reference for one in apart) for apart in self._apart)
        count = len((unclear | (alike - {part.gpu for part in here})) - inside) + few
        if first.known_by == _TOLD:
            return np.full(group.lane.end.size, count)
        spans = [span for gpu, span in self._covered.items() if span[2] == first.reference and gpu not in inside]
        start, end, _ = np.array(spans, np.int64).reshape(-1, 3).T
        time = group.lane.end[:, None]
        return np.asarray(((time < start) | (time > end)).sum(axis=1) + count + uncertain)


def _rows(groups: list[_Group], flat: list[Lane], absent: _Absent) -> Met:
    nothing = np.empty(0, np.int64)
    columns: list[tuple[Ints, ...]] = [(nothing,) * 6]
    missing = [nothing]
    first = 0
    for group in groups:
        ranks = np.bincount(np.concatenate([meeting for _, meeting in group.members]), minlength=group.lane.end.size)
        shared = ranks > 1
        number = np.where(shared, first + np.cumsum(shared) - 1, -1)
        columns += [_columns(part, number[meeting]) for part, meeting in group.members]
        missing.append((len(group.members) - ranks + absent.from_group(group))[shared])
        first += int(shared.sum())
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    alone = sum(lane.end.size for lane in flat) - joined[0].size
    return _possible(Met(np.concatenate(missing), flat, alone, *joined))


def _columns(part: _Part, meeting: Rows) -> tuple[Ints, ...]:
    rows = np.flatnonzero(meeting >= 0)
    own, lane = part.lane, np.full(rows.size, part.at, np.int64)
    return meeting[rows], lane, part.rows[rows], own.start[rows], own.end[rows], part.error[rows]


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
    streams = [[_Stream(part, alike(part)) for lane in own for part in _by_name(lane)] for own in lanes]
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


def _by_name(lane: Lane) -> Iterator[Lane]:
    """A stream, and what it ran of each kernel: communicators that share a stream seldom share a kernel."""
    yield lane
    names = np.unique(lane.name)
    for rows in (np.flatnonzero(lane.name == name) for name in names[: names.size if names.size > 1 else 0]):
        yield Lane(*lane[:5], *(column[rows] for column in lane[5:]))


def _alone(clocks: dict[int, Clock]) -> dict[int, str]:
    references = [clock.reference for clock in clocks.values()]
    return {at: NOT_CERTAIN for at in references if references.count(at) == 1 and len(clocks) > 1}


def _joined(
    streams: Sequence[Sequence[_Stream]], waiting: list[int], clocks: dict[int, Clock], reference: int
) -> list[int]:
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
    pairs = [(a, b) for a in one for b in other if comparable(a.lane, b.lane)]

    def unlikely(pair: tuple[_Stream, _Stream]) -> tuple[bool, int]:
        a, b = pair[0].lane, pair[1].lane
        return a.communicator is None or b.communicator is None, -min(a.end.size, b.end.size)

    return sorted(pairs, key=unlikely)[:_PAIRS]
