"""Answers that are put together from those about each report, so that only one report is in memory at a time.

Every analysis takes :meth:`Dataset.by_report <tracekit.dataset.opening.Dataset.by_report>` and keeps small sums of each
report: arrays by module that are added to, sums by key (:class:`Totals`) and how often each value occurs
(:class:`~tracekit.aggregates.spread.Values`). Codes mean the same in all reports (:class:`Words`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from tracekit.aggregates.spread import SummedRows
from tracekit.arrays.codes import Labels
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset


def rows_of_each(dataset: Dataset, of_one: Callable[[Dataset], pd.DataFrame]) -> pd.DataFrame:
    """The rows about each report, in the order of the reports."""
    return all_rows([of_one(part) for part in dataset.by_report()])


def all_rows(answers: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several answers; types of empty ones do not count, and what is missing among objects is None."""
    whole = pd.concat([one for one in answers if len(one)] or answers[:1], ignore_index=True)
    objects = [name for name in whole.columns if pd.api.types.is_object_dtype(whole[name])]
    # Texts of one answer and only missing ones of another are objects, of which some are None and some NaN.
    return whole.assign(**{name: whole[name].where(whole[name].notna(), None) for name in objects})


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
    """Figures added up by key over reports, sorted by key: numbers, or words in the order in which they were met."""

    def __init__(self, keys: Sequence[str], figures: Sequence[str]) -> None:
        self._names = [*keys, *figures]
        self._rows = SummedRows(len(keys))
        self._words: dict[str, Words] = {}

    def add(self, columns: Mapping[str, Ints | Flags | Labels]) -> None:
        """Adds the rows of a report, of which many can have one key."""
        self._rows.add(*(self._numbers(name, columns[name]) for name in self._names))

    def _numbers(self, name: str, column: Ints | Flags | Labels) -> Ints | Flags:
        return self._words.setdefault(name, Words()).codes(column) if isinstance(column, Labels) else column

    def frame(self) -> pd.DataFrame:
        """A row for each key."""
        rows = dict(zip(self._names, self._rows.sums(), strict=True))
        return pd.DataFrame(rows | {name: words.named(rows[name]) for name, words in self._words.items()})
