"""What each call costs by itself: FLOPs and bytes of one run, how often it ran, and why that is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.analyses.costs import own_work as bits, together
from tracekit.analyses.costs.compiled import compiled_costs
from tracekit.analyses.costs.kinds import CallKinds
from tracekit.analyses.costs.operators import operator_flops
from tracekit.analyses.costs.own_work import own_work
from tracekit.analyses.subtrees import hierarchy
from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tracekit.analyses.costs.compiled import Compiled
    from tracekit.analyses.costs.own_work import OwnWork
    from tracekit.analyses.costs.together import Together
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset

_COLUMNS = (
    "call_id",
    "parent_call_id",
    "module_id",
    "phase",
    "pid",
    "tid",
    "start_ns",
    "end_ns",
    "gpu_time_ns",
    "gpu_self_time_ns",
)


class Costs(NamedTuple):
    """The calls of a report, or of a subtree of one; rows are those of its table ``calls``.

    Attributes:
        report: The part of the dataset that is about the report.
        table: Columns of the table ``calls``.
        modules: The hierarchy of all reports.
        owner: The module of each call.
        runs: How often it ran, -1 where unknown.
        flops: FLOPs of one run by itself, without the calls inside; -1 where unknown.
        kinds: The kinds of calls of this report and of those before it.
        kind: The kind of each call.
        work: The work of the calls.
        compiled: The work of compiled graphs, which is that of modules inside them.
    """

    report: Dataset
    table: pa.Table
    modules: Hierarchy
    owner: Rows
    runs: Ints
    flops: Ints
    kinds: CallKinds
    kind: Rows
    work: OwnWork
    compiled: Compiled

    def column(self, name: str) -> Ints:
        """A figure of :class:`~tracekit.flops.judging.Judged` for each call, -1 where unknown."""
        figures = [getattr(verdict, name) for verdict in self.kinds.judged]
        of_calls: Ints = np.array([-1 if figure is None else figure for figure in figures], np.int64)[self.kind]
        return of_calls

    def words(self, name: str) -> tuple[Rows, list[str | None]]:
        """A word of :class:`~tracekit.flops.judging.Judged` for each call, as a place in a list of words."""
        words = [getattr(verdict, name) for verdict in self.kinds.judged]
        distinct = list(dict.fromkeys(words))
        place = {word: at for at, word in enumerate(distinct)}
        return np.array([place[word] for word in words], dtype=np.int64)[self.kind], distinct


def costs(dataset: Dataset, dtype: str | None = None, modules: Hierarchy | None = None) -> Iterator[Costs]:
    """What the calls of a dataset cost, report by report.

    What calls of a module tell of others holds in all reports: where there are several, that is looked at first.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: The dtype of layers whose markers record none.
        modules: Its hierarchy, if that is at hand.
    """
    modules, kinds, parts = modules or hierarchy(dataset), CallKinds(dataset, dtype), [*dataset.by_report()]
    known = together.of_reports(parts, modules) if len(parts) > 1 else None
    for part in parts:
        yield _of_report(part, modules, kinds, known)


def _of_report(dataset: Dataset, modules: Hierarchy, kinds: CallKinds, known: Together | None) -> Costs:
    calls = dataset.table("calls", [*_COLUMNS, *kinds.tensors, *([REPORT] if dataset.reports else [])])
    work = own_work(dataset, modules, calls, known)
    owner = modules.rows(calls)
    operators = operator_flops(dataset, calls, work)
    if operators is not None:
        # Those inside a compiled graph are of the modules that its kernels serve.
        held = work.bits & bits.COMPILED > 0
        operators = operators._replace(flops=np.where(held, -1, operators.flops))
    kind = kinds.numbered(calls, owner, work, operators)
    flops = np.array([-1 if verdict.flops is None else verdict.flops for verdict in kinds.judged], np.int64)[kind]
    if operators is not None:
        flops = np.where(operators.flops >= 0, operators.flops, flops)
    compiled = compiled_costs(dataset, calls, modules, work.table)
    return Costs(dataset, calls, modules, owner, work.runs, flops, kinds, kind, work, compiled)
