"""How much work was attributed, what was not and why, and what to do about it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "coverage"


def frame(dataset: Dataset) -> pd.DataFrame:
    """The table ``coverage``, report by report.

    Returns:
        ``report`` (only in a dataset of several), ``what``, ``cause``, ``known``, ``count``, ``time_ns``, ``share``
        (of the time or count of ``what`` in its report) and ``advice``.

    Raises:
        UsageError: If the dataset is a subtree: coverage is not counted by module.
    """
    rows = pd.DataFrame(dataset.table("coverage").to_pylist(), columns=_columns(dataset))
    types = {"known": "bool", "count": "int64", "time_ns": "int64", "share": "float64"}
    return rows.astype(types)


def _columns(dataset: Dataset) -> list[str]:
    named = ["report"] if dataset.reports else []
    return [*named, "what", "cause", "known", "count", "time_ns", "share", "advice"]
