"""Where steps may begin in work that nobody marked: by short sequences that each pattern has in one place only."""

from collections.abc import Sequence

import numpy as np

from tracekit.aligned.reference import Pattern
from tracekit.aligned.signatures import mixed
from tracekit.arrays.types import Ints, Rows

#: Lengths of sequences, and how many of each length show where a pattern begins.
_LENGTHS = range(1, 7)
_OF_EACH_LENGTH = 3
#: A sequence that occurs so much more often than others of its pattern is part of something else, too.
_TOO_OFTEN = 4
#: Of beginnings this close together, around which something was added or left out, the one with the most votes counts.
_CLOSE = 6


def beginnings(names: Ints, patterns: Sequence[Pattern]) -> Rows:
    """Places of a sequence of names where one of the patterns may begin, in ascending order.

    A pattern may be followed by itself, so that its last elements and its first ones also show where it begins.
    """
    votes: list[Rows] = []
    own = [_digests(names, length) for length in _LENGTHS]
    present = [np.unique(digests) for digests in own]
    seen: set[bytes] = set()
    for pattern in patterns:
        key = pattern.work.name.tobytes()
        if key not in seen:
            seen.add(key)
            votes += _votes(own, present, pattern.work.name)
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


def _votes(own: list[Ints], present: list[Ints], pattern: Ints) -> list[Rows]:
    found: list[tuple[int, Rows]] = []
    for length, digests, there in zip(_LENGTHS, own, present, strict=True):
        if length > pattern.size:
            break
        around = _digests(np.append(pattern, pattern[: length - 1]), length)
        distinct, first, times = np.unique(around, return_index=True, return_counts=True)
        once = first[(times == 1) & np.isin(distinct, there)]
        offset = np.where(once > pattern.size // 2, once - pattern.size, once)
        nearest = np.argsort(np.abs(offset), kind="stable")[:_OF_EACH_LENGTH]
        found += [(int(offset[at]), np.flatnonzero(digests == around[once[at]])) for at in nearest.tolist()]
    least = min((rows.size for _, rows in found), default=0)
    return [rows - offset for offset, rows in found if rows.size <= _TOO_OFTEN * least]


def _digests(names: Ints, length: int) -> Ints:
    """A digest of every sequence of so many names, by its beginning."""
    size = max(0, names.size - length + 1)
    digest = np.zeros(size, dtype=np.int64)
    for at in range(length):
        digest = mixed(digest, names[at : at + size])
    return digest
