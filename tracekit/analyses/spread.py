"""Quantiles and means of many groups at once, ratios and shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.arrays.groups import counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.arrays.types import Floats, Ints, Rows


_ONE_KEY = 2**62


class Spread(NamedTuple):
    """The values of each of some groups, sorted by (group, value)."""

    start: Ints
    size: Ints
    value: Ints

    def quantile(self, share: float) -> Floats:
        """A quantile of each group, interpolated linearly as pandas does; NaN for empty groups."""
        at = self.start + share * np.maximum(self.size - 1, 0)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, self.start + np.maximum(self.size, 1) - 1)
        padded = np.append(self.value, 0).astype(np.float64)
        low, high = np.minimum(low, self.value.size), np.minimum(high, self.value.size)
        between = padded[low] + (padded[high] - padded[low]) * (at - low)
        return np.where(self.size > 0, between, np.nan)

    def mean(self) -> Floats:
        """The mean of each group, NaN for empty groups."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.value)))
        total = running[self.start + self.size] - running[self.start]
        return ratio(total, self.size)


def spread(group: Rows, value: Ints, groups: int) -> Spread:
    """The values by group; group -1 is ignored."""
    kept = group >= 0
    group, value = group[kept], value[kept]
    count = counts(group, groups)
    return Spread(np.cumsum(count) - count, count, _in_order(group, value, groups))


def _in_order(group: Rows, value: Ints, groups: int) -> Ints:
    """The values sorted by (group, value)."""
    if not value.size:
        return value
    low, high = int(value.min()), int(value.max())
    span = high - low + 1
    if span * groups >= _ONE_KEY:
        return value[np.lexsort((value, group))]
    # One key sorts several times faster than two.
    key = np.sort(group.astype(np.int64) * span + (value - low))
    return np.remainder(key, span) + low


def ratio(part: NDArray[Any], whole: NDArray[Any] | int) -> Floats:
    """``part`` divided by ``whole``, NaN where ``whole`` is 0."""
    divisor = np.broadcast_to(np.asarray(whole, np.float64), part.shape)
    quotient = np.full(part.shape, np.nan)
    np.divide(part, divisor, out=quotient, where=divisor != 0)
    return quotient


def share(part: Ints, whole: int) -> Floats:
    """Shares of a whole; 0 if the whole is 0."""
    return np.nan_to_num(ratio(part, whole))
