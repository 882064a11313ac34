"""Where can wall-clock time be saved?

Each family of findings looks in the tables for what may cost time; the model of the step
(:mod:`tracekit.analyses.whatif`) then computes what mending it would save at the most. What is hidden behind other work
saves nothing and is not listed.

To add a family, write ``findings/<name>.py`` with ``NAME`` and ``candidates`` as
:class:`~tracekit.analyses.findings.base.Family` has them, add it to ``FAMILIES``, and a program with the fault and
without it to the tests.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.base import Columns
from tracekit.analyses.findings import (
    allocation,
    below_roof,
    clock_drop,
    data_loading,
    elementwise_chain,
    exposed_communication,
    garbage_collection,
    host_wait,
    launch_bound,
    pageable_copy,
    recompilation,
    repeated_copy,
    straggler,
    unlike_layers,
)
from tracekit.analyses.findings.base import Candidate, Family
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.findings.sample import sampled
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError, did_you_mean

NAME = "findings"
ANSWER = ("family", "module", "saving_share", "saving_ns", "advice")
FAMILIES: tuple[Family, ...] = (
    *(host_wait, launch_bound, data_loading, pageable_copy, repeated_copy, elementwise_chain),
    *(exposed_communication, straggler, unlike_layers, allocation, recompilation, garbage_collection),
    *(clock_drop, below_roof),
)
#: Findings that would save a smaller share of the median step are not listed.
_LEAST_SHARE = 0.01
#: By which share of a saving the model may err, as delays of single launches vary: the bound is so much larger.
_ERROR = 0.03
#: How many candidates of a family the model is asked about; how many of all families, given how many calls and pieces
#: of work it plays each time, are asked about at least.
_MOST_OF_FAMILY, _LEAST_ASKED, _MOST_PLAYED = 4, 4, 3_000_000


def frame(dataset: Dataset) -> pd.DataFrame:
    """What could be had back of the median step, the most first.

    Returns:
        A row per finding: ``family``, ``module`` (path, of layers that are alike with ``*`` for their numbers; null
        outside modules), ``rank`` (from 1), ``saving_ns`` (the most that mending it saves of the median step, by the
        model with 3 % for its error; what findings save together can be less than their sum), ``saving_share`` (of that
        step), ``evidence`` (``table``, the first ``ids`` of rows there, of ``waits`` their ``start_ns``, their
        ``count``, and the ``command`` that shows more) and ``advice``.

    Raises:
        UsageError: If the dataset is a subtree.
    """
    return pd.DataFrame(columns(dataset))


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    rows = [finding._asdict() for finding in findings(dataset)]
    answer: Columns = {}
    for name in Finding._fields:
        answer[name] = np.empty(len(rows), _TYPES.get(name, object))
        answer[name][:] = [row[name] for row in rows]
    return answer


class Finding(NamedTuple):
    """A row of :func:`frame`."""

    family: str
    module: str | None
    rank: int
    saving_ns: int
    saving_share: float
    evidence: dict[str, Any]
    advice: str


_TYPES = {"rank": np.int64, "saving_ns": np.int64, "saving_share": np.float64}


def findings(dataset: Dataset) -> list[Finding]:
    """What could be had back of the median step, the most first."""
    if dataset.root is not None:
        raise UsageError(f"{NAME} are of whole devices; ask the whole dataset, without --path")
    sample = sampled(dataset)
    if not has_device_work(sample):
        return []
    steps = StepRows(sample)
    least = max(1, _LEAST_SHARE * steps.step_ns)
    found = []
    for family, candidate in _asked(steps, least):
        saving = steps.model.saved_ns(candidate.edit, fastest=candidate.fastest)
        if min(saving, candidate.most_ns) >= least:
            bound = min(round((1 + _ERROR) * saving), int(candidate.most_ns), steps.step_ns)
            found.append((bound, family, candidate))
    found.sort(key=lambda one: -one[0])
    return [_finding(rank, *one, steps.step_ns) for rank, one in enumerate(found, 1)]


def _asked(steps: StepRows, least: float) -> list[tuple[str, Candidate]]:
    """The candidates that the model is asked about, each with its family: those that may save most."""
    promising: list[tuple[str, Candidate]] = []
    for family in FAMILIES:
        candidates = (candidate for candidate in family.candidates(steps) if candidate.most_ns >= least)
        largest = nlargest(_MOST_OF_FAMILY, candidates, key=lambda one: one.most_ns)
        promising += [(family.NAME, candidate) for candidate in largest]
    number = max(_LEAST_ASKED, _MOST_PLAYED // max(1, steps.work.start.size + steps.events.start.size))
    return nlargest(number, promising, key=lambda one: one[1].most_ns)


def has_device_work(dataset: Dataset) -> bool:
    """Whether a device worked for any time, so that its steps have a wall clock that something could save."""
    return any(map(_worked, dataset.by_report()))


def _worked(report: Dataset) -> bool:
    table = report.table("kernels", ["kind", "start_ns", "end_ns"])
    kinds = labels(table, "kind")
    lasts = integers(table, "end_ns") > integers(table, "start_ns")
    return bool((lasts & ~np.isin(kinds.code, kinds.of("cpu_op"))).any())


def _finding(rank: int, saving: int, family: str, candidate: Candidate, step_ns: int) -> Finding:
    return Finding(family, candidate.module, rank, saving, saving / step_ns, candidate.evidence, candidate.advice)


def check_family(name: str) -> None:
    """Checks that there is a family of a name.

    Raises:
        UsageError: If there is none.
    """
    names = [family.NAME for family in FAMILIES]
    if name not in names:
        raise UsageError(f"there is no family of findings {name}; {did_you_mean(name, names)}")
