"""Which ranks met in each collective, on the clock of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.ranks.clocks import Clock, aligned, in_order
from tracekit.ranks.collectives import RECORDS_EXACT_TO_NS, Lane, collectives, sessions


class Participations(NamedTuple):
    """Ranks in collectives, a row for each rank in each, with times on the clock of the reference and their error.

    It is ``proven`` where all ranks of the collective are known.
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
    known: dict[str, Ranks] = dataset.known_of_all
    if key not in known:
        lanes, names = collectives(whole)
        clocks = aligned(lanes, sessions(whole))
        known[key] = Ranks(lanes, names, clocks, participations(lanes, clocks))
    return known[key]


#: Without ids, ranks that end something together so often share a communicator.
_LEAST = 4


def participations(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Participations:
    """The collectives in which at least two ranks are known to have met, in the order in which all of them ran them."""
    flat = [lane for own in lanes for lane in own]
    times = [(clocks[lane.report].at(lane.start), clocks[lane.report].at(lane.end)) for lane in flat]
    placed = [lane._replace(start=start, end=end) for lane, (start, end) in zip(flat, times, strict=True)]
    groups = _groups(placed, clocks) if len({lane.gpu for lane in flat}) > 1 else []
    columns, size = [(np.empty(0, np.int64),) * 7], 0
    for group in (group for group in groups if len(group) > 1):
        for at, ahead in group.items():
            event, error = np.arange(flat[at].end.size), clocks[flat[at].report].error(flat[at].end)
            ranks = np.where(_others_elsewhere(placed[at], group, groups, placed, clocks), len(group), -1)
            columns.append((size + 1 + ahead + event, np.full(event.size, at), event, *times[at], error, ranks))
        size = max(int(column[0][-1]) for column in columns[-len(group) :]) + 1
    number, *known, ranks = map(np.concatenate, zip(*columns, strict=True))
    joined, start, end = np.bincount(number, minlength=size), *known[2:4]
    # A rank that ends before another begins was in another one.
    kept = ((maxima(number, start, size) <= minima(number, end, size)) & (joined > 1))[number]
    proven = (minima(number, ranks, size) == joined)[number[kept]]
    meeting = np.unique(number[kept], return_inverse=True)[1]
    return Participations(proven, flat, meeting, *(column[kept] for column in known))


def _groups(lanes: Sequence[Lane], clocks: Sequence[Clock]) -> list[dict[int, int]]:
    """The streams of each communicator, and how many collectives each is ahead of the first."""
    groups: dict[tuple[object, ...], list[dict[int, int]]] = {}
    for at, lane in enumerate(lanes):
        own = groups.setdefault((clocks[lane.report].reference, lane.communicator, lane.name), [])
        for group in own:
            ahead = _ahead(lanes[next(iter(group))], lane)
            if ahead is not None and lane.gpu not in {lanes[other].gpu for other in group}:
                group[at] = ahead
                break
        else:
            own.append({at: 0})
    return [group for own in groups.values() for group in own]


def _ahead(one: Lane, other: Lane) -> int | None:
    """How many collectives of the first are before the first of the second, if they are the same in one way alone."""
    found = [
        ahead
        for ahead, first, second in in_order(one, other)
        if (np.abs(first.end - second.end) <= np.minimum(first.apart, second.apart) + RECORDS_EXACT_TO_NS).all()
        and first.end.size >= (_LEAST if one.communicator is None else 1)
    ]
    return found[0] if len(found) == 1 else None


def _others_elsewhere(
    one: Lane, group: dict[int, int], groups: Sequence[dict[int, int]], lanes: Sequence[Lane], clocks: Sequence[Clock]
) -> Flags:
    """When a rank of a group ended its collectives, whether no GPU outside may have been in them.

    Those of other communicators were elsewhere. Without ids those that have met others of the same clock were, if they
    were recorded before and after, and end nothing then that may be the same.
    """
    gpus, told, elsewhere = {lanes[at].gpu for at in group}, one.communicator, np.ones(one.end.size, bool)
    for ranks, lane in ((len(outside), lanes[at]) for outside in groups for at in outside):
        if lane.name == one.name and lane.gpu not in gpus and (told is None or lane.communicator in (None, told)):
            known = ranks > 1 and clocks[lane.report].reference == clocks[one.report].reference
            known &= told is None or lane.communicator is None
            before, after = np.searchsorted(lane.end, [one.end - one.apart, one.end + one.apart + 1])
            elsewhere &= known & (before == after) & (before > 0) & (after < lane.end.size)
    return elsewhere
