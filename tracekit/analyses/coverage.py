"""How much work was attributed, what was not and why, and what to do about it?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.weighted_kernels import kernels, shared_kernels
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import Dataset

#: The methods of attribution that infer.
INFERRING = ("graph_order", "graph_capture", "graph_launch", "autograd_thread", "aligned")
#: What attribution can be.
KINDS = ("exact", "weighted", "inferred")

NAME = "coverage"
ANSWER = ("report", "what", "cause", "share", "known", "advice")

#: Subject of the rows that report how certain attribution is.
CERTAINTY = "certainty"
_TYPES = {"known": "bool", "count": "int64", "time_ns": "int64", "share": "float64"}


def frame(dataset: Dataset) -> pd.DataFrame:
    """The table ``coverage``, report by report, and how sure attribution is.

    Returns:
        ``report`` (only in a dataset of several), ``what``, ``cause``, ``detail``, ``known``, ``count``, ``time_ns``,
        ``share`` (of the time or count of ``what`` in its report) and ``advice``. Where not all attribution is exact,
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


class Certainty(NamedTuple):
    """How much work of a report is attributed in one of :data:`KINDS`; ``share`` is of all work, attributed or not."""

    report: int
    kind: str
    pieces: int
    time_ns: int
    share: float


def certainties(dataset: Dataset) -> list[Certainty]:
    """What is attributed, report by report, by how sure that is; kinds that no work has are left out."""
    return [row for at, part in enumerate(dataset.by_report()) for row in _certainties(part, at)]


def _certainties(dataset: Dataset, report: int) -> list[Certainty]:
    work = kernels(dataset, ["kernel_id", "module_id", "method", "dur_ns"])
    kind, time = _kinds(dataset, work), integers(work, "dur_ns")
    number, spent = counts(kind, len(KINDS)).tolist(), sums(kind, time, len(KINDS)).tolist()
    whole = int(time.sum())
    return [
        Certainty(report, name, number[at], spent[at], spent[at] / whole if whole else 0.0)
        for at, name in enumerate(KINDS)
        if number[at]
    ]


def certainty_of_work(dataset: Dataset) -> dict[str, int]:
    """The time of all attributed work, in nanoseconds, for each of :data:`KINDS`."""
    time = dict.fromkeys(KINDS, 0)
    for row in certainties(dataset):
        time[row.kind] += row.time_ns
    return time


def _kinds(dataset: Dataset, work: pa.Table) -> Rows:
    method = labels(work, "method")
    kind = np.where(integers(work, "module_id") >= 0, KINDS.index("exact"), -1)
    shared = np.isin(integers(work, "kernel_id"), integers(shared_kernels(dataset.whole), "kernel_id"))
    kind[shared] = KINDS.index("weighted")
    inferring = np.concatenate([method.of(name) for name in INFERRING])
    kind[np.isin(method.code, inferring) & (kind >= 0)] = KINDS.index("inferred")
    return kind
