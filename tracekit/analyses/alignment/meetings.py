"""Which ranks met in each collective, on the clock of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.analyses.alignment.clocks import Clock, aligned, in_order, may_end_apart
from tracekit.analyses.alignment.collectives import Lane, collectives, ends_apart, sessions
from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset


class Participations(NamedTuple):
    """Ranks in collectives, a row for each rank in each, with times on the clock of the reference and their error.

    Attributes:
        proven: Whether all ranks of the row's collective are known.
    """

    proven: Flags
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

    def kernels(self) -> tuple[Ints, Rows, Ints]:
        """The kernels of proven collectives, the number of each from 0 on, and how long it waited for the last rank."""
        start, meeting = self.start[self.proven], np.unique(self.meeting[self.proven], return_inverse=True)[1]
        arrived = maxima(meeting, start, int(meeting.max(initial=-1)) + 1)
        return self.of_events("kernel_id")[self.proven], meeting, arrived[meeting] - start


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
    """A lane, on the clock of the reference, and how far its times are from the truth."""

    at: int
    reference: int
    lane: Lane
    error: Ints


#: Ranks of one communicator, and how many collectives each is ahead of the first.
_Group: TypeAlias = list[tuple[_Series, int]]


def met(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Participations:
    """The collectives in which at least two ranks are known to have met, in the order in which all of them ran them."""
    flat = [lane for own in lanes for lane in own]
    several = len({lane.gpu for lane in flat}) > 1
    groups = _groups([_series(at, lane, clocks[lane.report]) for at, lane in enumerate(flat)] if several else [])
    columns, size = [(np.empty(0, np.int64),) * 7], 0
    for group in (group for group in groups if len(group) > 1):
        for one, ahead in group:
            event, ranks = np.arange(one.error.size), np.where(_others_elsewhere(one, group, groups), len(group), -1)
            number = size + 1 + ahead + event
            columns.append((number, np.full(event.size, one.at), event, one.lane.start, one.lane.end, one.error, ranks))
        size = max(int(column[0][-1]) for column in columns[-len(group) :]) + 1
    number, *known, ranks = map(np.concatenate, zip(*columns, strict=True))
    joined, start, end = np.bincount(number, minlength=size), *known[2:4]
    # A rank that ends before another begins was in another one.
    kept = ((maxima(number, start, size) <= minima(number, end, size)) & (joined > 1))[number]
    proven, meeting = (
        (minima(number, ranks, size) == joined)[number[kept]],
        np.unique(number[kept], return_inverse=True)[1],
    )
    return Participations(proven, flat, meeting, *(column[kept] for column in known))


def _series(at: int, lane: Lane, clock: Clock) -> _Series:
    placed = lane._replace(start=clock.at(lane.start), end=clock.at(lane.end))
    return _Series(at, clock.reference, placed, clock.error(lane.end))


def _groups(series: Sequence[_Series]) -> list[_Group]:
    """The communicators."""
    groups: dict[tuple[object, ...], list[_Group]] = {}
    for one in series:
        own = groups.setdefault((one.reference, one.lane.communicator, one.lane.name), [])
        for group in own:
            ahead = _ahead(group[0][0], one)
            if ahead is not None and one.lane.gpu not in {other.lane.gpu for other, _ in group}:
                group.append((one, ahead))
                break
        else:
            own.append([(one, 0)])
    return [group for own in groups.values() for group in own]


def _ahead(one: _Series, other: _Series) -> int | None:
    """How many collectives of the first are before the first of the second, if they are the same in one way alone."""
    told, error = one.lane.communicator is not None, int(one.error.max() + other.error.max())
    found = [
        ahead
        for ahead, first, second in in_order(one.lane, other.lane)
        if (np.abs(first.end - second.end) <= may_end_apart(first, second) + error * told).all()
        and (told or first.end.size >= _LEAST)
    ]
    return found[0] if len(found) == 1 else None


def _others_elsewhere(one: _Series, group: _Group, groups: Sequence[_Group]) -> Flags:
    """When a rank of a group ended its collectives, whether no GPU outside may have been in them.

    Those of other communicators were elsewhere. Without ids those were that are known to have met others, if they were
    recorded before and after, and end nothing then that may be the same.
    """
    gpus, end, near = {own.lane.gpu for own, _ in group}, one.lane.end, ends_apart(one.lane.end - one.lane.start)
    told, elsewhere = one.lane.communicator, np.ones(one.lane.end.size, bool)
    for series, lane in ((other, outside.lane) for other in groups for outside, _ in other):
        if lane.name == one.lane.name and lane.gpu not in gpus and (told is None or lane.communicator in (None, told)):
            known = len(series) > 1 and series[0][0].reference == one.reference
            known &= told is None or lane.communicator is None
            before, after = np.searchsorted(lane.end, [end - near, end + near + 1])
            elsewhere &= known & (before == after) & (before > 0) & (after < lane.end.size)
    return elsewhere
