"""Whether a step may begin or end at a place, by the names that follow each other there.

A model with more layers than that of the marked run holds a whole step of it, and steps of one with fewer layers make
one together. What tells both from steps is where they would be cut: names that follow each other in the midst of a step
do so at no end of one, or the other way round.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.unmarked.signatures import mixed


class Cuts(NamedTuple):
    """Places where work is cut in stretches.

    Attributes:
        place: The first work after each.
        goes_on: Whether what is around it follows each other within steps only.
        twice: Whether the same kernel runs before and after it, which it does at no end of a step.
    """

    place: Rows
    goes_on: Flags
    twice: Flags


class Borders:
    """What follows each other where steps end, and within steps, by digests of the names."""

    def __init__(self, steps: Sequence[Ints]) -> None:
        ends, begins = (np.unique([names[at] for names in steps]) for at in (-1, 0))
        self._between = _joined(np.repeat(ends, begins.size), np.tile(begins, ends.size))
        self._inner = np.unique(np.concatenate([part for names in steps for part in (_pairs(names), _triples(names))]))

    def cuts(self, names: Ints, line: Ints, place: Rows) -> Cuts:
        """What is known of places in work whose lines have numbers; the ends of lines are at none."""
        inside = np.flatnonzero((place > 0) & (place < names.size))
        inside = inside[line[place[inside] - 1] == line[place[inside]]]
        at = place[inside]
        last, first = names[at - 1], names[at]
        within = ~np.isin(_joined(last, first), self._between)
        goes_on, twice = np.zeros(place.size, dtype=bool), np.zeros(place.size, dtype=bool)
        twice[inside] = within & (last == first)
        for begin in (at - 2, at - 1):
            known = np.flatnonzero(within & (begin >= 0) & (begin + 2 < names.size))
            begins = begin[known]
            known = known[line[begins] == line[begins + 2]]
            triple = _joined(_joined(names[begin[known]], names[begin[known] + 1]), names[begin[known] + 2])
            goes_on[inside[known[np.isin(triple, self._inner)]]] = True
        return Cuts(place, goes_on, twice)

    def holds_a_border(self, names: Ints) -> bool:
        """Whether names follow each other as they do only where a step ends, so that they are of two steps."""
        pairs = _pairs(names)
        return bool((np.isin(pairs, self._between) & ~np.isin(pairs, self._inner)).any())


def _joined(left: Ints, right: Ints) -> Ints:
    return mixed(mixed(left, 0), right)


def _pairs(names: Ints) -> Ints:
    return _joined(names[:-1], names[1:])


def _triples(names: Ints) -> Ints:
    return _joined(_pairs(names)[:-1], names[2:])
