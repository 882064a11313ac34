"""Where steps begin and end in work that nobody marked, by the names that follow each other.

They may begin around short sequences that each pattern has in one place only.

A model with more layers than that of the marked run holds a whole step of it, and steps of one with fewer layers make
one together. What tells both from steps is where they would be cut: names that follow each other in the midst of a step
do so at no end of one, or the other way round.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.unmarked.reference import Pattern
from tracekit.unmarked.signatures import mixed


class Cuts(NamedTuple):
    """Places where work is cut in stretches."""

    place: Rows  # the first work after each
    inside_step: Flags  # whether what is around it follows each other within steps only


class Borders:
    """What follows each other where steps end, and within steps, by digests of the names."""

    def __init__(self, steps: Sequence[Ints]) -> None:
        ends, begins = (np.unique([names[at] for names in steps]) for at in (-1, 0))
        self._between = _joined(np.repeat(ends, begins.size), np.tile(begins, ends.size))
        pairs = [_pairs(names) for names in steps]
        triples = [_joined(of_step[:-1], names[2:]) for of_step, names in zip(pairs, steps, strict=True)]
        self._inner = np.unique(np.concatenate([*pairs, *triples]))

    def cuts(self, names: Ints, line: Ints, place: Rows) -> Cuts:
        """What is known of places in work whose lines have numbers; the ends of lines are at none."""
        inside = np.flatnonzero((place > 0) & (place < names.size))
        inside = inside[line[place[inside] - 1] == line[place[inside]]]
        at = place[inside]
        no_border = ~np.isin(_joined(names[at - 1], names[at]), self._between)
        inside_step = np.zeros(place.size, dtype=bool)
        for begin in (at - 2, at - 1):
            known = np.flatnonzero(no_border & (begin >= 0) & (begin + 2 < names.size))
            begins = begin[known]
            known = known[line[begins] == line[begins + 2]]
            triple = _joined(_joined(names[begin[known]], names[begin[known] + 1]), names[begin[known] + 2])
            inside_step[inside[known[np.isin(triple, self._inner)]]] = True
        return Cuts(place, inside_step)

    def holds_a_border(self, names: Ints) -> bool:
        """Whether names follow each other as they do only where a step ends: two steps, compared with none."""
        pairs = _pairs(names)
        return bool((np.isin(pairs, self._between) & ~np.isin(pairs, self._inner)).any())


def _joined(left: Ints, right: Ints) -> Ints:
    return mixed(mixed(left, 0), right)


def _pairs(names: Ints) -> Ints:
    return _joined(names[:-1], names[1:])


#: Lengths of sequences, and how many of each length show where a pattern begins.
_LENGTHS = range(1, 7)
_OF_EACH_LENGTH = 3
#: The beginning of the work in which a sequence must occur to be looked for in all of it.
_LOOKED_AT = 100_000
#: A sequence that occurs so much more often than others of its pattern is part of something else, too.
_TOO_OFTEN = 4
#: If beginnings are this close together, with something added or left out around them, the one with most votes counts.
_CLOSE = 6


def beginnings(names: Ints, patterns: Sequence[Pattern]) -> Rows:
    """Places of a sequence of names where one of the patterns may begin, in ascending order.

    A pattern may be followed by itself, so that its last elements and its first ones also show where it begins.
    """
    votes: list[Rows] = []
    own = [_Occurrences(digests) for digests in _digests_of(names)]
    seen: set[bytes] = set()
    for pattern in patterns:
        key = pattern.work.name.tobytes()
        if key not in seen:
            seen.add(key)
            votes += _votes(own, pattern.work.name)
    places, number = np.unique(np.concatenate(votes or [names[:0]]), return_counts=True)
    inside = (places >= 0) & (places < names.size)
    places, number = places[inside], number[inside]
    # Of places close to each other, those with most votes.
    kept = np.ones(places.size, dtype=bool)
    for apart in range(1, _CLOSE + 1):
        close = places[apart:] - places[:-apart] <= _CLOSE
        kept[:-apart] &= ~(close & (number[apart:] > number[:-apart]))
        kept[apart:] &= ~(close & (number[:-apart] > number[apart:]))
    return np.asarray(places[kept])


class _Occurrences:
    """Where sequences of one length occur, each looked for once."""

    def __init__(self, digests: Ints) -> None:
        self._digests, self.likely = digests, np.unique(digests[:_LOOKED_AT])
        self._known: dict[int, Rows] = {}

    def of(self, digest: int) -> Rows:
        if digest not in self._known:
            self._known[digest] = np.flatnonzero(self._digests == digest)
        return self._known[digest]


def _votes(own: Sequence[_Occurrences], pattern: Ints) -> list[Rows]:
    found: list[tuple[int, Rows]] = []
    around = np.append(pattern, pattern[: _LENGTHS[-1]])
    for occurrences, digests in zip(own, _digests_of(around), strict=True):
        distinct, first, times = np.unique(digests[: pattern.size], return_index=True, return_counts=True)
        once = first[(times == 1) & np.isin(distinct, occurrences.likely)]
        offset = np.where(once > pattern.size // 2, once - pattern.size, once)
        nearest = np.argsort(np.abs(offset), kind="stable")[:_OF_EACH_LENGTH]
        found += [(int(offset[at]), occurrences.of(int(digests[once[at]]))) for at in nearest.tolist()]
    least = min((rows.size for _, rows in found), default=0)
    return [rows - offset for offset, rows in found if rows.size <= _TOO_OFTEN * least]


def _digests_of(names: Ints) -> Iterator[Ints]:
    """Digests of all sequences of each length, by their beginnings."""
    digest = np.zeros(names.size, dtype=np.int64)
    for length in _LENGTHS:
        size = max(0, names.size - length + 1)
        digest = mixed(digest[:size], names[names.size - size :])
        yield digest
