"""Time by phase of training: what forward, backward, recomputation and optimizer took, side by side.

The phase of a kernel is what the program did when it launched it (``kernels.phase``): inside modules that of the
innermost call, unless autograd or an optimizer runs inside that call. Whatever has another phase (loading data,
compilation) or none that is known is ``other``, so that the phases add up to the whole.
"""

from __future__ import annotations

import numpy as np

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.spread import SummedRows, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import kernels, weighted_kernels
from tracekit.arrays.codes import Labels
from tracekit.arrays.columns import selected
from tracekit.arrays.groups import sums
from tracekit.arrays.types import Columns, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Kernels

#: The phases that have columns; the last one holds all other work.
PHASES = ("forward", "backward", "recompute", "optimizer", "other")
#: The columns of a time by phase, which add up to it.
COLUMNS = tuple(f"{phase}_ns" for phase in PHASES)
#: Columns of which one has time exactly where there was training.
TRAINING = ("backward_ns", "recompute_ns", "optimizer_ns")


def phase_times(dataset: Dataset) -> dict[str, Ints]:
    """The time of every module of a dataset itself, in the order of ``modules``, by :data:`COLUMNS`."""
    modules = hierarchy(dataset)
    own = np.zeros((len(PHASES), len(modules.path)), np.int64)
    for part in dataset.by_report():
        work = weighted_kernels(part, ["module_id", "dur_ns", "phase"])
        own += by_phase(modules.rows_of(work.module_id), work, len(modules.path))
    return dict(zip(COLUMNS, own, strict=True))


def by_phase(group: Rows, work: Kernels, groups: int) -> Ints:
    """The time of each group of work, a row for each of :data:`PHASES`; -1 is no group."""
    cell = np.where(group < 0, -1, phase_rows(work.phase) * groups + group)
    return sums(cell, work.dur_ns, groups * len(PHASES)).reshape(len(PHASES), groups)


def phase_rows(phase: Labels) -> Rows:
    """The place in :data:`PHASES` of each kernel's ``phase``."""
    place = [PHASES.index(word) if word in PHASES else len(PHASES) - 1 for word in [*phase.words, None]]
    rows: Rows = np.array(place, dtype=np.int64)[phase.code]
    return rows


def trains(dataset: Dataset) -> bool:
    """Whether any work of a dataset belongs to a phase of training other than forward."""
    training = [name.removesuffix("_ns") for name in TRAINING]
    phases = (part.rows(Kernels, ["phase"]).phase for part in dataset.by_report())
    return any(bool(phase.among(*training).any()) for phase in phases)


def outside(dataset: Dataset) -> Columns:
    """Work outside modules by its cause, the most time first.

    Returns:
        Columns with a row per cause: ``cause``, ``kernels``, ``self_ns``, its time by phase (:data:`COLUMNS`), and
        ``share`` (of all GPU time). A subtree has none.
    """
    causes, rows, whole_ns = Words(), SummedRows(keys=2), 0
    for part in dataset.by_report():
        work = kernels(part, ["module_id", "dur_ns", "phase", "cause"])
        whole_ns += int(work.dur_ns.sum())
        rest = work.filter(work.module_id < 0)
        rows.add(causes.codes(rest.cause), phase_rows(rest.phase), np.ones(len(rest), np.int64), rest.dur_ns)
    cause, phase, number, ns = rows.sums()
    known, row = np.unique(cause, return_inverse=True)
    time = sums(row, ns, known.size)
    by_phases = sums(phase * known.size + row, ns, len(PHASES) * known.size).reshape(len(PHASES), known.size)
    answer = {
        "cause": np.array(causes.named(known), object),
        "kernels": sums(row, number, known.size),
        "self_ns": time,
        **dict(zip(COLUMNS, by_phases, strict=True)),
        "share": share(time, whole_ns),
    }
    return selected(answer, np.argsort(-time, kind="stable"))
