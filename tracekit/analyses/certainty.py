"""How sure attribution is: how much of the work is one module's by recorded facts, shared by weights, or inferred.

*Exact*: work of one module, by what was recorded. *Weighted*: a fused kernel of several modules, which the kernel map
of its compiled graph tells with weights. *Inferred*: work whose module a method concludes though no record tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.analyses.devices import kernels
from tracekit.analyses.portions import shared_kernels
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Rows
    from tracekit.dataset.opening import Dataset

#: The methods of attribution that infer.
INFERRING = ("graph_order", "graph_capture", "autograd_thread")
#: What attribution can be.
KINDS = ("exact", "weighted", "inferred")


class Certainty(NamedTuple):
    """How much work of a report is attributed in one of :data:`KINDS`.

    Attributes:
        report: The place of the report among those of the dataset.
        kind: Which of :data:`KINDS`.
        pieces: How many pieces of work.
        time_ns: Their time.
        share: Its share of the time of all work of the report, attributed or not.
    """

    report: int
    kind: str
    pieces: int
    time_ns: int
    share: float


def certainties(dataset: Dataset) -> list[Certainty]:
    """What is attributed, report by report, by how sure that is; kinds that no work has are left out."""
    return [row for at, part in enumerate(dataset.by_report()) for row in _of_report(part, at)]


def _of_report(dataset: Dataset, report: int) -> list[Certainty]:
    """What is attributed of the work of one report."""
    work = kernels(dataset, ["kernel_id", "module_id", "method", "dur_ns"])
    kind, time = _kinds(dataset, work), integers(work, "dur_ns")
    number, spent = counts(kind, len(KINDS)).tolist(), sums(kind, time, len(KINDS)).tolist()
    whole = int(time.sum())
    return [
        Certainty(report, name, number[at], spent[at], spent[at] / whole if whole else 0.0)
        for at, name in enumerate(KINDS)
        if number[at]
    ]


def of_all(dataset: Dataset) -> dict[str, int]:
    """The time of all attributed work, in nanoseconds, for each of :data:`KINDS`."""
    time = dict.fromkeys(KINDS, 0)
    for row in certainties(dataset):
        time[row.kind] += row.time_ns
    return time


def _kinds(dataset: Dataset, work: pa.Table) -> Rows:
    """For every piece of work its kind, or -1 if it has no module."""
    method = labels(work, "method")
    kind = np.where(integers(work, "module_id") >= 0, KINDS.index("exact"), -1)
    shared = np.isin(integers(work, "kernel_id"), integers(shared_kernels(dataset.whole), "kernel_id"))
    kind[shared] = KINDS.index("weighted")
    inferring = np.concatenate([method.of(name) for name in INFERRING])
    kind[np.isin(method.code, inferring) & (kind >= 0)] = KINDS.index("inferred")
    return kind
