"""How much work was attributed, what was not and why, and what to do about it?"""

from __future__ import annotations

import pandas as pd

from tracekit.aggregates.each_report import all_rows
from tracekit.aggregates.weighted_kernels import certainties
from tracekit.dataset.opening import Dataset

NAME = "coverage"
ANSWER = ("report", "what", "cause", "share", "known", "advice")

#: Subject of the rows that report how certain attribution is.
CERTAINTY = "certainty"
_COLUMNS = ("what", "cause", "detail", "known", "count", "time_ns", "share", "advice")
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
    columns = [*(["report"] if dataset.reports else []), *_COLUMNS]
    rows = [pd.DataFrame(part.table("coverage", columns).to_pydict(), columns=columns) for part in dataset.by_report()]
    sure = certainties(dataset)
    inexact = any(row.kind != "exact" for row in sure)
    certain = [
        {"report": dataset.names[row.report], "what": CERTAINTY, "cause": row.kind, "detail": "", "known": True}
        | {"count": row.pieces, "time_ns": row.time_ns, "share": row.share, "advice": ""}
        for row in (sure if inexact else ())
    ]
    return all_rows([*rows, pd.DataFrame(certain, columns=columns)]).astype(_TYPES)
