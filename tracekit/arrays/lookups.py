"""Looking up: the positions of ids among others, and values by position. -1 is no position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.arrays.types import Ints, Rows

#: Ids that leave out more numbers than this for each of them are sorted instead of counted through.
_MOST_LEFT_OUT = 2


def positions(wanted: Ints, ids: Ints) -> Rows:
    """The position of each wanted id in ``ids``, -1 for those that are not there.

    Args:
        wanted: Any ids.
        ids: Distinct ids, in any order; ascending ones, and those that leave few numbers out, are looked up faster.
    """
    if not ids.size:
        return np.full(wanted.size, -1, dtype=np.int64)
    wanted, ids = wanted.astype(np.int64, copy=False), ids.astype(np.int64, copy=False)
    low, high = int(ids.min()), int(ids.max())
    if high - low < _MOST_LEFT_OUT * ids.size:
        place_of = np.full(high - low + 1, -1, dtype=np.int64)
        place_of[ids - low] = np.arange(ids.size)
        inside = (wanted >= low) & (wanted <= high)
        return np.where(inside, place_of[np.where(inside, wanted - low, 0)], -1)
    ascending = bool((ids[1:] > ids[:-1]).all())
    order = None if ascending else np.argsort(ids, kind="stable")
    by_id = ids if order is None else ids[order]
    place = np.minimum(np.searchsorted(by_id, wanted), ids.size - 1)
    position = place if order is None else order[place]
    return np.where(by_id[place] == wanted, position, -1)


def lookup(values: NDArray[Any], rows: Rows, missing: int = -1) -> NDArray[Any]:
    """``values[rows]``, with ``missing`` where the row is -1."""
    return np.append(values, missing).take(rows)
