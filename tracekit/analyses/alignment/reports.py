"""Every report's clock against that of one report: offset, drift, and how far from the truth they can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.analyses.alignment.matching import LEAST, alike, line_between

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.analyses.alignment.collectives import Lane
    from tracekit.analyses.alignment.lines import Line
    from tracekit.analyses.alignment.matching import Alike
    from tracekit.arrays.types import Ints

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

    Attributes:
        reference: The place of the report whose clock the others of the group are measured against.
        over: The clock that it was compared with; None of the reference itself.
        line: How to get from it to that clock.
        matched: How many collectives both share; 0 of the reference.
        unmatched: How many of both have no counterpart in the time that both cover.
        why: Why the clock stays apart, if it has a group of its own.
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
    """The clock of every report.

    The order in which the reports were given changes little: the reference is the one with the lowest rank.

    Args:
        lanes: The streams of each report.
    """
    clocks: dict[int, Clock] = {}
    streams = [[_Stream(lane, alike(lane)) for lane in own] for own in lanes]
    waiting = sorted(
        (at for at, own in enumerate(lanes) if _longest(own) >= LEAST),
        key=lambda at: (min((lane.rank for lane in lanes[at] if lane.rank >= 0), default=1 << 31), at),
    )
    while waiting:
        reference = waiting.pop(0)
        clocks[reference] = Clock(reference)
        waiting = _joined(streams, waiting, clocks, reference)
    reference_of_none = {at: Clock(at, why=_why(lanes[at])) for at in range(len(lanes)) if at not in clocks}
    alone = _alone(clocks)
    return [reference_of_none.get(at) or (alone.get(at) or clocks[at]) for at in range(len(lanes))]


def _longest(lanes: Sequence[Lane]) -> int:
    return max((lane.end.size for lane in lanes), default=0)


def _why(lanes: Sequence[Lane]) -> str:
    return FEW_COLLECTIVES if lanes else NO_COLLECTIVES


def _alone(clocks: dict[int, Clock]) -> dict[int, Clock]:
    """Clocks that no other was measured against, and which are measured against none."""
    references = [clock.reference for clock in clocks.values()]
    single = {at for at in references if references.count(at) == 1} if len(clocks) > 1 else set()
    return {at: Clock(at, why=NOT_CERTAIN) for at in single}


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
    """With which reports one is compared: the reference, and those nearest to it."""
    near = sorted(group[1:], key=lambda other: abs(other - at))
    return [group[0], *near[: _ANCHORS - 1]]


def _measured(
    streams: Sequence[Sequence[_Stream]], at: int, anchors: list[int], clocks: dict[int, Clock]
) -> Clock | None:
    """The clock of a report against the first of some that shares enough with it."""
    for anchor in anchors:
        for one, other in _pairs(streams[anchor], streams[at]):
            answer = line_between(one.lane, other.lane, _more_alike(one, other))
            if answer is not None:
                line, match = answer
                return Clock(clocks[anchor].reference, clocks[anchor], line, int(match.one.size), match.unmatched)
    return None


def _more_alike(one: _Stream, other: _Stream) -> Alike:
    return tuple(map(max, one.alike, other.alike))


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
