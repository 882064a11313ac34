"""How much work was attributed, what was not and why, and what to do about it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tracekit.analyses.certainty import certainties

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "coverage"

#: Subject of the rows that say how sure attribution is.
CERTAINTY = "certainty"


def frame(dataset: Dataset) -> pd.DataFrame:
    """The table ``coverage``, report by report, and how sure attribution is.

    Returns:
        ``report`` (only in a dataset of several), ``what``, ``cause``, ``known``, ``count``, ``time_ns``, ``share``
        (of the time or count of ``what`` in its report) and ``advice``. Where not all attribution is exact, rows whose
        ``what`` is ``certainty`` divide the attributed work once more: ``cause`` is ``exact`` (of one module, by what
        was recorded), ``weighted`` (of several modules, whose shares a kernel map tells) or ``inferred``; ``share`` is
        that of all work.

    Raises:
        UsageError: If the dataset is a subtree: coverage is not counted by module.
    """
    table = dataset.table("coverage").to_pylist()
    rows = pd.DataFrame([*table, *_certainty(dataset)], columns=_columns(dataset))
    types = {"known": "bool", "count": "int64", "time_ns": "int64", "share": "float64"}
    return rows.astype(types)


def _certainty(dataset: Dataset) -> list[dict[str, object]]:
    """The rows on how sure attribution is; none if all of it is exact."""
    rows = certainties(dataset)
    if all(row.kind == "exact" for row in rows):
        return []
    counted = {"what": CERTAINTY, "known": True, "advice": ""}
    reports = [*dataset.reports] or [""]
    return [
        counted
        | {"report": reports[row.report], "cause": row.kind, "count": row.pieces}
        | {"time_ns": row.time_ns, "share": row.share}
        for row in rows
    ]


def _columns(dataset: Dataset) -> list[str]:
    named = ["report"] if dataset.reports else []
    return [*named, "what", "cause", "known", "count", "time_ns", "share", "advice"]
