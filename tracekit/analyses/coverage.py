"""What is known and what is not, counted by cause, with advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "coverage"


def frame(dataset: Dataset) -> pd.DataFrame:
    """The table ``coverage``; of several reports, their rows one after the other.

    Returns:
        ``report`` (only where there are several), ``what``, ``cause``, ``known``, ``count``, ``time_ns``, ``share``
        (of the subject's time or count, in its report) and ``advice``.

    Raises:
        UsageError: If the dataset is a subtree: coverage knows no modules.
    """
    found = pd.DataFrame(dataset.table("coverage").to_pylist(), columns=_columns(dataset))
    types = {"known": "bool", "count": "int64", "time_ns": "int64", "share": "float64"}
    return found.astype(types)


def _columns(dataset: Dataset) -> list[str]:
    named = ["report"] if dataset.reports else []
    return [*named, "what", "cause", "known", "count", "time_ns", "share", "advice"]
