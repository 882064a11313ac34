"""Which ranks met in each collective, on the clock of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.analyses.alignment.clock_offsets import end_together, in_order
from tracekit.analyses.alignment.clocks import NO_COLLECTIVES, Clock, aligned
from tracekit.analyses.alignment.collectives import Lane, collectives, ends_apart, sessions
from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset


class Participations(NamedTuple):
    """Ranks in collectives, a row for each rank in each, with times on the clock of the reference and their error.

    Attributes:
        missing: Of each collective, how many GPUs are, or may be, of its communicator and have no record of it.
    """

    missing: Ints
    lanes: list[Lane]
    meeting: Rows
    lane: Rows
    event: Rows
    start: Ints
    end: Ints
    error: Ints

    def of_events(self, name: str) -> Ints:
        """A column of the lanes, such as ``kernel_id``, for each row."""
        first = np.cumsum([0, *(lane.end.size for lane in self.lanes)])
        columns = [np.zeros(0, np.int64), *(getattr(lane, name) for lane in self.lanes)]
        return np.asarray(np.concatenate(columns)[first[self.lane] + self.event])

    @property
    def proven(self) -> Flags:
        """Whether all ranks of a row's collective are known."""
        return np.asarray(self.missing[self.meeting] == 0)


class Ranks(NamedTuple):
    """Everything that is known of the collectives of a dataset."""

    lanes: list[list[Lane]]
    names: list[str]
    clocks: list[Clock]
    meetings: Participations


def ranks_of(dataset: Dataset) -> Ranks:
    """The collectives of a dataset and who met in them: worked out once, since all questions share it."""
    whole = dataset.whole
    key = f"ranks of {whole.reports}, {[session.pids for session in sessions(whole)]}"
    if key not in dataset.known_of_all:
        lanes, names = collectives(whole)
        clocks = aligned(lanes, sessions(whole))
        dataset.known_of_all[key] = Ranks(lanes, names, clocks, met(lanes, clocks))
    ranks: Ranks = dataset.known_of_all[key]
    return ranks


#: Without ids, ranks that so often end something together are of one communicator.
_LEAST = 4


class _Series(NamedTuple):
    """Collectives of one kernel on one stream, on the clock of the reference, and how far from the truth."""

    gpu: int
    at: int
    reference: int
    lane: Lane
    error: Ints


#: Ranks of one communicator, and how many collectives each is ahead of the first.
_Group: TypeAlias = list[tuple[_Series, int]]


def met(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Participations:
    """The collectives in which at least two ranks are known to have met, in the order in which all of them ran them."""
    flat = [part for own in lanes for lane in own for part in lane.by_name()]
    keys = [(lane.report, lane.pid, lane.device) for lane in flat]
    gpus = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    series = [
        _series(gpus[key], at, lane, clocks[lane.report])
        for at, (key, lane) in enumerate(zip(keys, flat, strict=True) if len(gpus) > 1 else ())
    ]
    groups = _groups(series)
    apart = {gpus[key] for key in keys if clocks[key[0]].why not in (None, NO_COLLECTIVES)}
    columns: list[list[Ints]] = [[np.empty(0, np.int64)] * 6]
    missing, first = [np.empty(0, np.int64)], 0
    for group in groups:
        if len(group) > 1:
            number, own = _rows(group)
            missing.append(_missing(group, groups, apart, (number, *own)))
            columns.append([number + first, *own])
            first += missing[-1].size
    return Participations(np.concatenate(missing), flat, *map(np.concatenate, zip(*columns, strict=True)))


def _series(gpu: int, at: int, lane: Lane, clock: Clock) -> _Series:
    placed = lane._replace(start=clock.at(lane.start), end=clock.at(lane.end))
    return _Series(gpu, at, clock.reference, placed, clock.error(lane.end))


def _groups(series: Sequence[_Series]) -> list[_Group]:
    """The communicators."""
    groups: dict[tuple[int, object, int], list[_Group]] = {}
    for one in series:
        own = groups.setdefault((one.reference, one.lane.communicator, int(one.lane.name[0])), [])
        for group in own:
            ahead = _ahead(group[0][0], one)
            if ahead is not None and one.gpu not in {other.gpu for other, _ in group}:
                group.append((one, ahead))
                break
        else:
            own.append([(one, 0)])
    return [group for own in groups.values() for group in own]


def _ahead(one: _Series, other: _Series) -> int | None:
    """How many collectives of the first are before the first of the second, if they are the same in one way alone."""
    told, error = one.lane.communicator is not None, int(one.error.max() + other.error.max())
    found = []
    for ahead, first, second in in_order(one.lane, other.lane):
        apart = first.end - second.end
        apart -= np.clip(apart, -error, error) if told else 0
        if end_together(first, second, apart) and (told or apart.size >= _LEAST):
            found.append(ahead)
    return found[0] if len(found) == 1 else None


def _rows(group: _Group) -> tuple[Rows, list[Ints]]:
    """The proven meetings of a communicator, numbered from 0 on, and their columns."""
    rows = [
        (event + ahead + 1, np.full(event.size, one.at), event, one.lane.start, one.lane.end, one.error)
        for one, ahead, event in ((one, ahead, np.arange(one.error.size)) for one, ahead in group)
    ]
    number, *own = map(np.concatenate, zip(*rows, strict=True))
    size, (start, end, error) = int(number.max()) + 1, own[2:]
    proven = maxima(number, start - error, size) <= minima(number, end + error, size)
    proven &= np.bincount(number) > 1
    kept = proven[number]
    return (np.cumsum(proven) - 1)[number[kept]], [column[kept] for column in own]


def _missing(group: _Group, groups: Sequence[_Group], apart: set[int], columns: Sequence[Ints]) -> Ints:
    """How many other GPUs may have joined each collective of a group: those without a proven place elsewhere."""
    number, _, _, start, end, _ = columns
    (reference, lane), may = group[0][0][2:4], {one.gpu for one, _ in group}
    told, near, ranks = lane.communicator, ends_apart(end - start), np.bincount(number)
    beside, outside = np.zeros(number.size, np.int64), np.zeros(number.size, np.int64)
    may |= apart if told is None else set()
    for other in groups:
        communicator, is_known = other[0][0].lane.communicator, len(other) > 1 and other[0][0].reference == reference
        for one in (one for one, _ in other if one.lane.name[0] == lane.name[0]):
            if communicator == told if told is not None and communicator is not None else not is_known:
                may.add(one.gpu)
            elif told is None and is_known and other is not group:
                # What ends beside it may be the same; who was not recorded then may have been there.
                beside += np.diff(np.searchsorted(one.lane.end, [end - near, end + near + 1]), axis=0)[0]
                outside |= (one.gpu not in may) & ((end < one.lane.end[0]) | (end > one.lane.end[-1]))
    extra = maxima(number, beside + outside, ranks.size) if ranks.size else ranks
    return np.asarray(len(may) - ranks + extra)
