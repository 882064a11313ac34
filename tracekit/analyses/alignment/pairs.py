"""Collectives of two streams on one clock that end together, each the nearest to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tracekit.analyses.alignment.collectives import Lane
    from tracekit.arrays.types import Flags, Ints, Rows

#: How far apart ranks end a collective: a ring of many hops takes longer, and so does much data.
#: The narrower is tried first: steps that are alike to some microseconds are told apart by it, if rings are small.
ENDS_APART_NS = (5_000, 15_000)
LONGEST_APART_NS, _PART_OF_DURATION = 50_000, 8
#: One in so many pairs may end too far apart; what is nearer than so small a part of the usual distance is a pair.
_SELDOM, _PART_OF_DISTANCE = 50, 4


class Match(NamedTuple):
    """Collectives of two streams that are the same.

    Attributes:
        one: Their places in the first stream.
        other: Their places in the second.
        overlapping: How many collectives both streams have in the time that both cover, added up.
        contradicted: How many others are each other's nearest, and end too far apart to be the same though nearer than
            successive collectives: as they do in communicators that run side by side.
    """

    one: Rows
    other: Rows
    overlapping: int
    contradicted: int

    @property
    def unmatched(self) -> int:
        """How many collectives in that time have no counterpart."""
        return self.overlapping - 2 * self.one.size

    @property
    def matched_share(self) -> float:
        """The share of the collectives in that time that have one."""
        return 2 * self.one.size / max(1, self.overlapping)

    @property
    def contradicts_itself(self) -> bool:
        """Whether the streams are of two communicators."""
        return self.contradicted > self.one.size // _SELDOM


class Exactness(NamedTuple):
    """How far apart ends may be: ends of one collective, and by what is not known of the clocks."""

    apart: int
    doubt: int


def same(one: Lane, other: Lane, ends: tuple[Ints, Ints]) -> Match:
    """The collectives of two streams that end together, by their ends on one clock."""
    return together(one, other, ends, Exactness(max(ENDS_APART_NS), 0))


def together(one: Lane, other: Lane, ends: tuple[Ints, Ints], exact: Exactness, chosen: Flags | None = None) -> Match:
    """Collectives of one name that end together, each the nearest to the other."""
    first = min(int(ends[0].min()), int(ends[1].min()))
    far = max(int(ends[0].max()), int(ends[1].max())) - first + 1
    one_key, other_key = (lane.name * (2 * far) + (end - first) for lane, end in zip((one, other), ends, strict=True))
    order = np.argsort(one_key, kind="stable")
    to_one = order[_nearest(one_key[order], other_key)]
    back_order = np.argsort(other_key, kind="stable")
    to_other = back_order[_nearest(other_key[back_order], one_key)]
    mutual = to_other[to_one] == np.arange(other_key.size)
    lasting = np.minimum((other.end - other.start), (one.end - one.start)[to_one])
    # Within its duration, so that neither ends before the other begins.
    apart = np.minimum(ends_apart(lasting, exact.apart), lasting)
    distance = np.abs(ends[0][to_one] - ends[1])
    pairs = mutual & (one.name[to_one] == other.name)
    fits = pairs & (distance <= np.maximum(apart, exact.doubt))
    if chosen is not None:
        fits &= chosen
    rows = np.flatnonzero(fits)
    near = pairs & ~fits & (distance <= np.maximum(apart, _usual_distance(ends) // _PART_OF_DISTANCE))
    return Match(to_one[rows], rows, _overlapping(ends), int(near.sum()))


def ends_apart(lasting: Ints, least: int = max(ENDS_APART_NS)) -> Ints:
    """How far apart ranks may end a collective that lasts so long for the last of them."""
    apart: Ints = np.minimum(least + lasting // _PART_OF_DURATION, LONGEST_APART_NS)
    return apart


def _nearest(values: Ints, wanted: Ints) -> Rows:
    """The place of the nearest of sorted values."""
    right = np.clip(np.searchsorted(values, wanted), 0, values.size - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(values[left] - wanted) <= np.abs(values[right] - wanted), left, right)


def _usual_distance(ends: tuple[Ints, Ints]) -> int:
    """How far apart successive collectives are, usually."""
    return min(int(np.median(np.diff(np.sort(end)))) if end.size > 1 else 0 for end in ends)


def _overlapping(ends: tuple[Ints, Ints]) -> int:
    """How many ends lie in the time that both cover."""
    low = max(int(end.min()) for end in ends) - LONGEST_APART_NS
    high = min(int(end.max()) for end in ends) + LONGEST_APART_NS
    return sum(int(((end >= low) & (end <= high)).sum()) for end in ends)
