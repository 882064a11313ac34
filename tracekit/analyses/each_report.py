"""Answers that are put together from those about each report, so that only one report is in memory at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.arrays.labels import Labels
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset


def rows_of_each(dataset: Dataset, of_one: Callable[[Dataset], pd.DataFrame]) -> pd.DataFrame:
    """The rows about each report, in the order of the reports.

    Args:
        dataset: The dataset, or a subtree of one.
        of_one: The answer about one report.
    """
    first: pd.DataFrame | None = None
    answers = []
    for part in dataset.by_report():
        answer = of_one(part)
        first = answer if first is None else first
        if len(answer):
            answers.append(answer)
    if not answers and first is not None:
        return first
    return pd.concat(answers, ignore_index=True)


def added(parts: Iterable[dict[str, Ints]]) -> dict[str, Ints]:
    """The sums of arrays of the same names and sizes, of which one set at a time is in memory."""
    totals: dict[str, Ints] = {}
    for part in parts:
        for name, values in part.items():
            totals[name] = totals[name] + values if name in totals else values
    return totals


def places(known: dict[str, int], words: list[str]) -> list[int]:
    """The places of a report's words among those of all reports so far, to which new ones are added."""
    return [known.setdefault(word, len(known)) for word in words]


def placed(known: dict[str, int], own: Labels) -> Rows:
    """The place of each row's word among those of all reports so far, to which new ones are added; -1 for null."""
    return np.array([*places(known, own.words), -1], np.int64)[own.code]


def words_at(known: dict[str, int], at: Rows) -> list[str | None]:
    """The words at some places, None for -1."""
    words = [*known, None]
    return [words[place] for place in at.tolist()]
