"""Which collectives of two streams are the same, by when they end.

All ranks end a collective together, so the times between ends are alike on all of them, whatever their clocks say. A
shift of the clocks under which the ends of both streams fall together, one by one, is found without numbering the
collectives: records may be lost, and either stream may begin later or end earlier. Where another shift does nearly as
well (steps that are alike to the microsecond), nothing is certain and nothing is matched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.analyses.alignment.lines import bounded, fitted
from tracekit.analyses.alignment.pairs import ENDS_APART_NS, LONGEST_APART_NS, Exactness, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analyses.alignment.collectives import Lane
    from tracekit.analyses.alignment.lines import Line
    from tracekit.analyses.alignment.pairs import Match
    from tracekit.arrays.types import Ints

#: So few collectives could fall together by chance.
LEAST = 8
#: The share of the collectives of both streams, in the time that both cover, that must be matched.
_MOST_MATCHED = 0.6
#: Another shift is refuted by so many collectives that it leaves without a counterpart.
_REFUTED_BY = 3
#: How many collectives of one stream look for their counterparts at first, around how many places, and how many shifts
#: are followed further.
_PROBE, _PLACES, _SHIFTS = 48, (0.5, 0.2, 0.8), 24
_MOST_PAIRS = 1 << 22
_DRIFT = 1e-4
_NEARLY = 0.75
#: In how many places a stream is compared with itself, and by how much more of two streams must fall together.
_LOOKS, _MORE = 16, 0.15
#: The least part of the shorter stream that must be matched.
_OF_SHORTER = 0.25
_FURTHER = 4


Alike: TypeAlias = tuple[float, ...]


def line_between(one: Lane, other: Lane, alike: Alike) -> tuple[Line, Match] | None:
    """How the clock of the second stream becomes that of the first; None if that is not certain.

    Args:
        one: The first stream.
        other: The second.
        alike: What :func:`alike` tells of either.
    """
    if not _comparable(one, other):
        return None
    for apart, share in zip(ENDS_APART_NS, alike, strict=True):
        best = _best_shift(one, other, apart, share) if share + _MORE <= 1 else None
        line = None if best is None else _bounded(one, other, best.match)
        if best is not None and line is not None:
            return line, best.match
    return None


def alike(lane: Lane) -> Alike:
    """The largest share of successive collectives of a stream that fall together with others of it if it is shifted.

    A shift that lets more of two streams fall together is the right one, whatever either has lost. For each of
    :data:`ENDS_APART_NS`.
    """
    if lane.end.size < LEAST:
        return (1.0,) * len(ENDS_APART_NS)
    probe = min(_PROBE, max(LEAST, lane.end.size // 2))
    most = np.zeros(len(ENDS_APART_NS))
    for first in np.unique(np.linspace(0, lane.end.size - probe, _LOOKS).astype(np.int64)).tolist():
        rows = slice(first, first + probe)
        apart = np.sort((lane.end[:, None] - lane.end[None, rows])[lane.name[:, None] == lane.name[None, rows]])
        np.maximum(most, [_together_elsewhere(apart, 2 * width) / probe for width in ENDS_APART_NS], out=most)
    return tuple(most.tolist())


def _together_elsewhere(apart: Ints, width: int) -> int:
    """The most differences within one width, but for those about 0."""
    elsewhere = apart[np.abs(apart) > width]
    count = np.searchsorted(elsewhere, elsewhere + width, side="right") - np.arange(elsewhere.size)
    return int(count.max(initial=0))


def _best_shift(one: Lane, other: Lane, apart: int, share: float) -> _Answer | None:
    """The shift under which most ends fall together, if all others are refuted."""
    least = max(LEAST, int(_OF_SHORTER * min(one.end.size, other.end.size)))
    for starts in _starts(one, other, apart):
        followed = [_followed(one, other, start, apart) for start in starts]
        answers = [answer for answer in followed if answer is not None and answer.is_likely(least, share)]
        if answers:
            return _best(answers, apart)
    return None


def _comparable(one: Lane, other: Lane) -> bool:
    """Whether two streams may be of one communicator."""
    if one.communicator is not None and other.communicator is not None and one.communicator != other.communicator:
        return False
    return min(one.end.size, other.end.size) >= LEAST and bool(np.isin(other.name, one.name).any())


def _starts(one: Lane, other: Lane, apart: int) -> Iterator[list[tuple[int, int]]]:
    """Shifts of the clocks under which a few successive collectives of the second stream end with some of the first.

    Yields:
        For successive ones around each place: their time on the clock of the second stream, and what to add to it.
    """
    probe = max(LEAST, min(_PROBE, _MOST_PAIRS // one.end.size, other.end.size))
    firsts = dict.fromkeys(int((other.end.size - probe) * place) for place in _PLACES)
    for first in firsts:
        rows = slice(first, first + probe)
        width = _width(other, rows, apart)
        differences = (one.end[:, None] - other.end[None, rows])[one.name[:, None] == other.name[None, rows]]
        middle = int(other.end[first + probe // 2])
        yield [(middle, shift) for shift in _densest(np.sort(differences), width, probe // 2)]


def _width(lane: Lane, rows: slice, apart: int) -> int:
    """How much shifts of successive collectives differ though they are the same on both streams."""
    ends = lane.end[rows]
    return 2 * apart + int((ends[-1] - ends[0]) * _DRIFT)


def _densest(values: Ints, width: int, least: int) -> Iterator[int]:
    """The middles of the windows of a width with the most values, the fullest first; none that has far fewer."""
    if not values.size:
        return
    count = np.searchsorted(values, values + width, side="right") - np.arange(values.size)
    fullest = int(count.max())
    for _ in range(_SHIFTS):
        at = int(np.argmax(count))
        if count[at] < max(least, fullest * _NEARLY):
            return
        yield int(np.median(values[at : at + count[at]]))
        count[np.searchsorted(values, values[at] - width) : np.searchsorted(values, values[at] + width, "right")] = 0


class _Shift(NamedTuple):
    """What to add to times: at one time, and how much more with each ns after it."""

    middle: int
    offset: float
    drift: float

    def of(self, time: Ints) -> Ints:
        moved: Ints = time + np.rint(self.offset + self.drift * (time - self.middle)).astype(np.int64)
        return moved


class _Answer(NamedTuple):
    """A shift, and the collectives that end together under it."""

    shift: _Shift
    match: Match

    def is_likely(self, least: int, alike: float) -> bool:
        """Whether it explains most of both streams, and clearly more than streams that are alike would."""
        count = max(1, self.match.overlapping // 2)
        needed = alike + _MORE + 2 * (alike * (1 - alike) / count) ** 0.5
        enough = self.match.one.size >= least and self.match.matched_share >= max(_MOST_MATCHED, needed)
        return enough and not self.match.contradicts_itself

    def refutes(self, other: _Answer, apart: int) -> bool:
        """Whether another shift is certainly wrong if this one is right, or about the same."""
        time = np.array([self.shift.middle], np.int64)
        if abs(int(self.shift.of(time)[0] - other.shift.of(time)[0])) <= 2 * apart:
            return True
        mine, its = self.match, other.match
        expected = mine.unmatched * its.overlapping / max(1, mine.overlapping)
        return its.unmatched > _REFUTED_BY + 2 * expected


def _best(answers: list[_Answer], apart: int) -> _Answer | None:
    """The one that refutes all others."""
    return next((one for one in answers if all(one.refutes(other, apart) for other in answers)), None)


def _followed(one: Lane, other: Lane, start: tuple[int, int], apart: int) -> _Answer | None:
    """A shift that is known around one time, followed to both ends of the streams."""
    time, shift = start
    line = _Shift(time, float(shift), 0.0)
    first, last = int(other.end[0]), int(other.end[-1])
    reach = max(1, int(np.partition(np.abs(other.end - time), min(_PROBE, other.end.size) - 1)[:_PROBE].max()))
    doubt = apart + int(reach * _DRIFT)
    while True:
        near = np.abs(other.end - time) <= reach
        match = together(one, other, (one.end, line.of(other.end)), Exactness(apart, doubt), near)
        if match.one.size < LEAST // 2:
            return None
        at = other.end[match.other]
        line = _Shift(*fitted(at, one.end[match.one] - at))
        if reach >= max(last - time, time - first):
            break
        reach, doubt = _FURTHER * reach, _FURTHER * apart
    final = together(one, other, (one.end, line.of(other.end)), Exactness(apart, 0))
    return _Answer(line, final)


def _bounded(one: Lane, other: Lane, match: Match) -> Line | None:
    """The line between the clocks, within what the collectives allow."""
    first, second = match.one, match.other
    near = one.end[first] - other.end[second]
    # No rank ends before the other began, nor long before or after it.
    lower = np.maximum(one.start[first] - other.end[second], near - LONGEST_APART_NS)
    upper = np.minimum(one.end[first] - other.start[second], near + LONGEST_APART_NS)
    return bounded(other.end[second], lower, upper, near)
