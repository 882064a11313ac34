"""How much work was attributed, what was not and why, and what to do about it?"""

from __future__ import annotations

import pandas as pd

from tracekit.aggregates.weighted_kernels import Certainty, certainties
from tracekit.dataset.opening import Dataset

NAME = "coverage"
ANSWER = ("report", "what", "cause", "share", "known", "advice")

#: Subject of the rows that report how certain attribution is.
CERTAINTY = "certainty"
_TYPES = {"known": "bool", "count": "int64", "time_ns": "int64", "share": "float64"}


def frame(dataset: Dataset) -> pd.DataFrame:
    """The table ``coverage``, report by report, and how sure attribution is.

    Returns:
        ``report`` (only in a dataset of several), ``what``, ``cause``, ``detail``, ``known``, ``count``, ``time_ns``,
        ``share`` (of the time or count of ``what`` in its report) and ``advice``. If not all attribution is exact,
        rows whose ``what`` is ``certainty`` divide the attributed work once more: ``cause`` is ``exact`` (of one
        module, by what was recorded), ``weighted`` (of several modules, whose shares a kernel map records) or
        ``inferred``; ``share`` is that of all work.

    Raises:
        UsageError: If the dataset is a subtree: coverage is not counted by module.
    """
    rows = [_of_report(part) for part in dataset.by_report()]
    sure = [_certainty(dataset, row) for row in certainties(dataset)]
    more = pd.DataFrame(sure if any(row["cause"] != "exact" for row in sure) else [], columns=_columns(dataset))
    parts = [part for part in (*rows, more) if len(part)] or rows[:1]
    return pd.concat(parts, ignore_index=True).astype(_TYPES)


def _of_report(dataset: Dataset) -> pd.DataFrame:
    table = dataset.table("coverage", _columns(dataset))
    return pd.DataFrame(table.to_pydict(), columns=_columns(dataset))


def _certainty(dataset: Dataset, row: Certainty) -> dict[str, object]:
    report = {"report": dataset.reports[row.report]} if dataset.reports else {}
    about = {"what": CERTAINTY, "cause": row.kind, "detail": "", "known": True}
    return {**report, **about, "count": row.pieces, "time_ns": row.time_ns, "share": row.share, "advice": ""}


def _columns(dataset: Dataset) -> list[str]:
    named = ["report"] if dataset.reports else []
    return [*named, "what", "cause", "detail", "known", "count", "time_ns", "share", "advice"]
