"""How sure the attribution of work is: exact, weighted or inferred."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit.aggregates.weighted_kernels import kernels, shared_kernels
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Kernels

#: The methods of attribution that infer.
INFERRING = ("graph_order", "graph_capture", "graph_launch", "autograd_thread", "aligned")
#: What attribution can be.
KINDS = ("exact", "weighted", "inferred")


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
    kind, whole = _kinds(dataset, work), int(work.dur_ns.sum())
    number, spent = counts(kind, len(KINDS)).tolist(), sums(kind, work.dur_ns, len(KINDS)).tolist()
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


def _kinds(dataset: Dataset, work: Kernels) -> Rows:
    kind = np.where(work.module_id >= 0, KINDS.index("exact"), -1)
    kind[np.isin(work.kernel_id, shared_kernels(dataset.whole).kernel_id)] = KINDS.index("weighted")
    kind[work.method.among(*INFERRING) & (kind >= 0)] = KINDS.index("inferred")
    return kind
