"""Where steps may begin in work that nobody marked: by short sequences that each pattern has in one place only."""

from collections.abc import Iterator, Sequence

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.unmarked.reference import Pattern
from tracekit.unmarked.signatures import mixed

#: Lengths of sequences, and how many of each length show where a pattern begins.
_LENGTHS = range(1, 7)
_OF_EACH_LENGTH = 3
#: The beginning of the work in which a sequence must occur to be looked for in all of it.
_LOOKED_AT = 100_000
#: A sequence that occurs so much more often than others of its pattern is part of something else, too.
_TOO_OFTEN = 4
#: Of beginnings this close together, around which something was added or left out, the one with the most votes counts.
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
    return _most_voted(places[inside], number[inside])


def _most_voted(places: Rows, number: Ints) -> Rows:
    """The places next to which no other has more votes."""
    kept = np.ones(places.size, dtype=bool)
    for apart in range(1, _CLOSE + 1):
        close = places[apart:] - places[:-apart] <= _CLOSE
        kept[:-apart] &= ~(close & (number[apart:] > number[:-apart]))
        kept[apart:] &= ~(close & (number[:-apart] > number[apart:]))
    return places[kept]


class _Occurrences:
    """Where sequences of one length occur, each looked for once."""

    def __init__(self, digests: Ints) -> None:
        self._digests = digests
        self._first = np.unique(digests[:_LOOKED_AT])
        self._known: dict[int, Rows] = {}

    def are_likely(self, digests: Ints) -> Flags:
        return np.isin(digests, self._first)

    def of(self, digest: int) -> Rows:
        if digest not in self._known:
            self._known[digest] = np.flatnonzero(self._digests == digest)
        return self._known[digest]


def _votes(own: Sequence[_Occurrences], pattern: Ints) -> list[Rows]:
    found: list[tuple[int, Rows]] = []
    around = np.append(pattern, pattern[: _LENGTHS[-1]])
    for occurrences, digests in zip(own, _digests_of(around), strict=True):
        distinct, first, times = np.unique(digests[: pattern.size], return_index=True, return_counts=True)
        once = first[(times == 1) & occurrences.are_likely(distinct)]
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
