"""Sequences of replays and of graph captures: a model in pieces captures a graph for each, and replays them in order.

Pieces that are alike (layers) are told apart by their places: what was replayed inside one range (a step) must be just
what was captured inside one range, in the same order and with none left out. One range may hold several passes.
"""

from __future__ import annotations

from operator import contains
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Ints, Rows
    from tracekit.recording.axis import ThreadAxis

#: Positions of graph captures that may have made a graph.
Candidates = frozenset[int]


def surroundings(axis: ThreadAxis, first: Ints, last: Ints, thread: Rows) -> Ints:
    """A number for each ``[first, last]``, the same for those inside one outermost range.

    Those of one thread that lie in no range have a negative number of their own. Ranges that overlap count as one.

    Args:
        axis: The recording's threads on one axis.
        first: Starts on the axis.
        last: Ends on the axis.
        thread: Rows of their threads.
    """
    start, end = axis.range_start[axis.ends_here], axis.range_end[axis.ends_here]
    reach = np.maximum.accumulate(end)
    fresh = np.ones(start.size, dtype=bool)
    fresh[1:] = start[1:] >= reach[:-1]
    begins = start[fresh]
    ends = reach[np.append(fresh[1:], True)] if start.size else end
    row = np.searchsorted(begins, first, side="right") - 1
    inside = (row >= 0) & (np.append(ends, first.min(initial=0) - 1)[row] >= last)
    return np.where(inside, row, -1 - thread)


def groups_of(number: Sequence[int]) -> list[list[int]]:
    """Positions of equal numbers, in the order given."""
    groups: dict[int, list[int]] = {}
    for position, one in enumerate(number):
        groups.setdefault(one, []).append(position)
    return list(groups.values())


def placed(sequence: Sequence[Candidates], batches: Sequence[Sequence[int]], *, numbered: bool) -> list[Candidates]:
    """For each replay of a sequence the graph captures in its place, of all batches that fit; none if none fits.

    Without ids of graphs, a batch fits only if one of its graph captures is unlike all others: a sequence of like
    graphs would fit in any order. Where a sequence may also be a part of another batch, or put together of shorter
    ones, those graph captures are left, too.

    Args:
        sequence: For each replay the graph captures that may have made its graph.
        batches: Graph captures that were made one after the other.
        numbered: Whether ids tell that these are different graphs, captured in this order.
    """
    fitting = [_fitting(sequence, batch, numbered=numbered) for batch in batches]
    passes = [chosen for of_batch in fitting for chosen in of_batch]
    if not passes:
        return []
    rest = [batch for batch, of_batch in zip(batches, fitting, strict=True) if not of_batch]
    longer = [batch for batch in rest if len(batch) >= len(sequence)]
    shorter = [capture for batch in rest if len(batch) < len(sequence) for capture in batch]
    others = [part for batch in (*longer, shorter) if all((part := _among(sequence, batch)).values())]
    return [
        frozenset(chosen[place] for chosen in passes).union(*(part[candidates] for part in others))
        for place, candidates in enumerate(sequence)
    ]


def _among(sequence: Sequence[Candidates], captures: Sequence[int]) -> dict[Candidates, Candidates]:
    return {one: one.intersection(captures) for one in {*sequence}}


def _fitting(sequence: Sequence[Candidates], batch: Sequence[int], *, numbered: bool) -> list[Sequence[int]]:
    """The places that the replays may have in a batch: it is made of such passes, or they of passes through it."""
    size, passes = len(sequence), []
    if len(batch) % size == 0:
        passes = [batch[start : start + size] for start in range(0, len(batch), size)]
    elif size % len(batch) == 0 and len(batch) > 1 and not numbered:
        passes = [[*batch] * (size // len(batch))]
    if not passes:
        return []
    anchored = numbered or any(len(one.intersection(batch)) == 1 for one in {*sequence})
    fit = anchored and all(all(map(contains, sequence, chosen)) for chosen in passes)
    return passes if fit else []
