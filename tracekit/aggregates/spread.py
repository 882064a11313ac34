"""Quantiles, means and shares of groups of values; equal values of many reports are counted, not kept."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracekit.arrays.groups import counts, sums, sums_by
from tracekit.arrays.types import Floats, Ints, Rows

#: Rows of single reports that wait to be added up; more cost memory, fewer cost time.
_MOST_WAITING = 1 << 19


class SummedRows:
    """Rows of keys and figures, added up by key over reports; those of a single report can stay as they are."""

    def __init__(self, keys: int) -> None:
        self._keys, self._parts = keys, list[list[NDArray[Any]]]()
        self._reports = self._summed = self._waiting = 0

    def add(self, *columns: NDArray[Any]) -> None:
        """Adds the rows of a report: the keys, then the figures."""
        self._parts.append([*columns])
        self._reports += 1
        self._waiting += columns[0].size
        # Adding up each small report separately would cost more than reading it.
        if self._reports > 1 and self._waiting > max(_MOST_WAITING, 2 * self._summed):
            self._parts = [self.sums()]
            self._summed, self._waiting = self._parts[0][0].size, 0

    @property
    def is_one_report(self) -> bool:
        """Whether the rows are those of a single report."""
        return self._reports == 1

    def columns(self) -> list[Ints]:
        """The rows of a single report in its order; or else those of :meth:`sums`."""
        return self._parts[0] if self.is_one_report else self.sums()

    def sums(self) -> list[Ints]:
        """One row for each key, in their order."""
        columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        keys, figures = sums_by(columns[: self._keys], columns[self._keys :])
        return [*keys, *figures]


_ONE_KEY = 2**62


class Spread(NamedTuple):
    """The values of each of some groups, sorted by (group, value)."""

    start: Ints  # how many values are before the group
    size: Ints  # how many it has
    value: Ints
    until: Ints | None = None  # how many there are up to each value of a group, if equal ones were counted

    def quantile(self, share: float) -> Floats:
        """A quantile of each group, interpolated linearly as pandas does; NaN for empty groups."""
        at = self.start + share * np.maximum(self.size - 1, 0)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, self.start + np.maximum(self.size, 1) - 1)
        padded = np.append(self.value, 0).astype(np.float64)
        below, above = (padded[np.minimum(self._rows(place), self.value.size)] for place in (low, high))
        return np.where(self.size > 0, below + (above - below) * (at - low), np.nan)

    def least(self) -> Ints:
        """The least value of each group; any number for empty groups."""
        return np.append(self.value, 0)[self._rows(self.start)]

    def greatest(self) -> Ints:
        """The greatest value of each group; any number for empty groups."""
        return np.append(self.value, 0)[self._rows(self.start + self.size - 1)]

    def total(self) -> Ints:
        """The sum of each group."""
        times = 1 if self.until is None else np.diff(self.until, prepend=0)
        running = np.append(0, np.cumsum(self.value * times))
        total: Ints = running[self._rows(self.start + self.size)] - running[self._rows(self.start)]
        return total

    def mean(self) -> Floats:
        """The mean of each group, NaN for empty groups."""
        return ratio(self.total(), self.size)

    def _rows(self, places: Ints) -> Rows:
        return places if self.until is None else np.searchsorted(self.until, places, side="right")


class Values:
    """Values of groups, report by report; equal ones of several reports are counted."""

    def __init__(self) -> None:
        self._rows = SummedRows(keys=2)

    def add(self, group: Rows, value: Ints) -> None:
        """Adds the values of a report; group -1 is ignored."""
        kept = group >= 0
        self._rows.add(group[kept], value[kept], np.ones(np.count_nonzero(kept), np.int64))

    def spread(self, groups: int) -> Spread:
        """The values by group."""
        group, value, times = self._rows.columns()
        if self._rows.is_one_report:
            return spread(group, value, groups)
        size = sums(group, times, groups)
        return Spread(np.cumsum(size) - size, size, value, np.cumsum(times))


def spread(group: Rows, value: Ints, groups: int) -> Spread:
    """The values by group; group -1 is ignored."""
    kept = group >= 0
    group, value = group[kept], value[kept]
    count = counts(group, groups)
    return Spread(np.cumsum(count) - count, count, _in_order(group, value, groups))


def _in_order(group: Rows, value: Ints, groups: int) -> Ints:
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
