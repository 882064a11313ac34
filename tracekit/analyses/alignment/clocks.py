"""The clock of every report against that of one of them, and why it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analyses.alignment.clock_offsets import LEAST, ClockOffset, offsets_between
from tracekit.analyses.alignment.collectives import Lane, Session
from tracekit.arrays.types import Ints

#: How many pairs of streams of two reports are compared.
_PAIRS = 64
#: Sessions of Nsight Systems on one machine, whose starts it recorded, were apart by what it recorded to 30 us; the
#: machine's clock may be slewed between the starts.
_STARTS_EXACT_TO_NS, _SLEW = 200_000, 5e-4

#: Why a clock stays apart.
NO_COLLECTIVES = "no collectives"
FEW_COLLECTIVES = f"fewer than {LEAST} collectives"
NOT_CERTAIN = "its collectives are not those of another report in the same order"
NOT_AS_RECORDED = "its collectives contradict when the reports of one machine say they began"
SEVERAL_WAYS = "its steps are alike: its collectives fit those of another report in several ways"


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a report, as one of a group of clocks that are known against each other.

    ``offsets`` lead to that of the reference, one after the other; ``why`` is why it stays apart.
    """

    reference: int
    offsets: tuple[ClockOffset, ...] = ()
    matched: int = 0
    why: str | None = None

    def at(self, time: Ints) -> Ints:
        """Times of the report on the clock of the reference."""
        for offset in self.offsets:
            time = offset.at(time)
        return time

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be, in ns."""
        error = np.zeros(time.size, np.int64)
        for offset in self.offsets:
            error += offset.error(time)
            time = offset.at(time)
        return error


def aligned(lanes: Sequence[Sequence[Lane]], sessions: Sequence[Session] = ()) -> list[Clock]:
    """The clock of every report, given its streams; the reference is the one with the lowest rank.

    Without sessions nothing is known of the reports but their collectives.
    """
    few = [max((lane.end.size for lane in own), default=0) < LEAST for own in lanes]
    why = {at: FEW_COLLECTIVES if lanes[at] else NO_COLLECTIVES for at, is_few in enumerate(few) if is_few}
    if len(lanes) == 1:
        return [Clock(0, why=None if lanes[0] else NO_COLLECTIVES)]
    first = [min((lane.rank for lane in own if lane.rank >= 0), default=1 << 31) for own in lanes]
    waiting = sorted(range(len(lanes)), key=lambda at: (few[at], first[at], at))
    clocks: dict[int, Clock] = {}
    while waiting:
        group = [waiting.pop(0)]
        clocks[group[0]] = Clock(group[0])
        # The group grows as it is gone through.
        for anchor, at in ((anchor, at) for anchor in group for at in waiting if at not in clocks):
            recorded = _recorded(sessions[anchor], sessions[at]) if sessions else None
            offset, reason = _between(lanes[anchor], lanes[at], recorded)
            if offset is not None:
                clocks[at] = Clock(group[0], (offset, *clocks[anchor].offsets), offset.matched)
                group.append(at)
            elif reason is not None:
                why[anchor] = why[at] = reason
        waiting = [at for at in waiting if at not in clocks]
        if len(group) == 1:
            clocks[group[0]] = Clock(group[0], why=why.get(group[0], NOT_CERTAIN))
    return [clocks[at] for at in range(len(lanes))]


def _between(
    one: Sequence[Lane], other: Sequence[Lane], recorded: ClockOffset | None
) -> tuple[ClockOffset | None, str | None]:
    """The offset, or why it is not known: what fits all streams in one way alone, within what both recorded."""
    pairs = _pairs(one, other)
    fit = [ways for ways in (offsets_between(*pair, recorded) for pair in pairs) if ways]
    certain = [own[0] for own in ([way for way in ways if way.certain] for ways in fit) if len(own) == 1]
    known = max(certain, key=lambda way: way.matched, default=None)
    if known is not None and all(any(map(known.agrees, ways)) for ways in fit):
        return known, None
    if recorded is None:
        return None, SEVERAL_WAYS if fit else None
    contradicts = not fit and any(way.certain for pair in pairs for way in offsets_between(*pair, None))
    return (None, NOT_AS_RECORDED) if contradicts else (recorded, None)


def _recorded(one: Session, other: Session) -> ClockOffset | None:
    """What to add to times of another session on the same machine, and how far from the truth that may be.

    Reports of one machine record its name and when they started on its clock, and have no process in common.
    """
    if not one.host or one.host != other.host or one.pids & other.pids:
        return None
    if one.started_utc_ns is None or other.started_utc_ns is None:
        return None
    apart = other.started_utc_ns - one.started_utc_ns
    return ClockOffset.recorded(apart, _STARTS_EXACT_TO_NS + int(abs(apart) * _SLEW))


def _pairs(one: Sequence[Lane], other: Sequence[Lane]) -> list[tuple[Lane, Lane]]:
    """Streams of a kernel that may be of one communicator, most collectives first."""
    parts, others = ([part for lane in own for part in lane.by_name()] for own in (one, other))
    both = [(a, b) for a in parts for b in others if a.communicator == b.communicator and a.name[0] == b.name[0]]
    alike = [(a, b) for a, b in both if abs(a.end.size - b.end.size) <= 1 and min(a.end.size, b.end.size) >= LEAST]
    return sorted(alike, key=lambda pair: -pair[0].end.size)[:_PAIRS]
