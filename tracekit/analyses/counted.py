"""Rows of integers of which equal ones are counted: memory grows with the different ones alone, not with reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.groups import sums_by

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints

#: Rows of single reports that wait to be counted; more cost memory, fewer cost time.
_MOST_WAITING = 1 << 19


class Counted:
    """Rows with how often they occur, report by report; those of a single report stay as they are."""

    def __init__(self, width: int) -> None:
        """No rows yet.

        Args:
            width: The number of columns.
        """
        self._parts: list[list[Ints]] = []
        self._width, self._reports = width, 0
        self._counted, self._waiting = 0, 0

    def add(self, *columns: Ints) -> None:
        """Adds the rows of a report."""
        self._parts.append([*columns, np.ones(columns[0].size, np.int64)])
        self._reports += 1
        self._waiting += columns[0].size
        if self._reports > 1 and self._waiting > max(_MOST_WAITING, 2 * self._counted):
            self._parts = [_counted(self._parts)]
            self._counted, self._waiting = self._parts[0][0].size, 0

    @property
    def is_one_report(self) -> bool:
        """Whether the rows are those of a single report, in its order; else they are sorted."""
        return self._reports <= 1

    def columns(self) -> list[Ints]:
        """The columns, and how often each row occurs."""
        if not self._reports:
            return [np.empty(0, np.int64)] * (self._width + 1)
        return self._parts[0] if self.is_one_report else _counted(self._parts)


def _counted(parts: list[list[Ints]]) -> list[Ints]:
    """Different rows, sorted, and how often they occur."""
    *keys, times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    keys, (times,) = sums_by(keys, (times,))
    return [*keys, times]
