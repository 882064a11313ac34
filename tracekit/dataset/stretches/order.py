"""Merges sorted runs: which rows of each come next, some at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.arrays.types import Ints

Run = tuple["Ints", "Ints"]


def batches(runs: Sequence[Run], most: int) -> Iterator[list[slice]]:
    """The next rows of each run, so that all keys of a batch come before those of the next one.

    Args:
        runs: Two keys of the rows of each run, which is sorted by them.
        most: About so many rows shall be in a batch; more where their keys are equal.
    """
    step = max(1, most // (2 * max(1, len(runs))))
    first, second = (np.concatenate([np.asarray(run[key][step::step]) for run in runs]) for key in (0, 1))
    order = np.lexsort((second, first))[:: max(1, most // (2 * step))][1:]
    before = [0] * len(runs)
    for at in order.tolist():
        until = [_position(run, int(first[at]), int(second[at])) for run in runs]
        if until != before:
            yield [slice(*edges) for edges in zip(before, until, strict=True)]
            before = until
    yield [slice(begin, run[0].size) for begin, run in zip(before, runs, strict=True)]


def _position(run: Run, first: int, second: int) -> int:
    """How many rows of a run come before a key."""
    low, high = (int(np.searchsorted(run[0], first, side=side)) for side in ("left", "right"))
    return low + int(np.searchsorted(run[1][low:high], second))
