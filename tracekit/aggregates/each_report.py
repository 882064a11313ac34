"""Answers that are put together from those about each report, so that only one report is in memory at a time.

Every analysis takes :meth:`Dataset.by_report <tracekit.dataset.opening.Dataset.by_report>` and keeps small sums of each
report: arrays by module that are added to, rows by key (:class:`Totals`) and how often each value occurs
(:class:`~tracekit.aggregates.spread.Values`). Codes mean the same in all reports (:class:`Words`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd

from tracekit.arrays.codes import Labels
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset

#: Rows of single reports that wait to be put together; more cost memory, fewer cost time.
_MOST_WAITING = 1 << 18


def rows_of_each(dataset: Dataset, of_one: Callable[[Dataset], pd.DataFrame]) -> pd.DataFrame:
    """The rows about each report, in the order of the reports."""
    answers = [of_one(part) for part in dataset.by_report()]
    return pd.concat([one for one in answers if len(one)] or answers[:1], ignore_index=True)


class Words:
    """The words of a column in all reports so far, numbered in the order in which they were met."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._place)

    def all(self) -> list[str]:
        """The words by number."""
        return [*self._place]

    def codes(self, known: Labels) -> Rows:
        """The number of each row's word, -1 for null."""
        place = [self._place.setdefault(word, len(self._place)) for word in known.words]
        return np.array([*place, -1], np.int64)[known.code]

    def named(self, codes: Iterable[int] | Ints) -> list[str | None]:
        """The words of some numbers, None for -1."""
        words = [*self._place, None]
        return [words[code] for code in np.asarray(codes, np.int64).tolist()]


class Totals:
    """Figures by key, put together over reports (``sum`` or ``max``) and sorted by key."""

    def __init__(self, keys: list[str], figures: Mapping[str, str]) -> None:
        self._keys, self._figures = keys, dict(figures)
        self._parts: list[Mapping[str, Ints]] = []
        self._grouped, self._waiting = 0, 0

    def add(self, columns: Mapping[str, Ints]) -> None:
        """Adds the rows of a report, of which many can have one key."""
        self._parts.append(columns)
        self._waiting += columns[self._keys[0]].size
        # Grouping each small report separately would cost more than reading it.
        if self._waiting > max(_MOST_WAITING, 2 * self._grouped):
            self.frame()

    def frame(self) -> pd.DataFrame:
        """A row for each key; what was added before is kept as these rows alone."""
        names = [*self._keys, *self._figures]
        rows = pd.DataFrame({name: np.concatenate([part[name] for part in self._parts]) for name in names})
        groups: pd.DataFrame = rows.groupby(self._keys, as_index=False).agg(self._figures)
        self._parts = [{name: groups[name].to_numpy() for name in names}]
        self._grouped, self._waiting = len(groups), 0
        return groups
