"""What only all calls together tell of one: what other calls of its module did, also in other reports."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.devices import from_graph
from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels
from tracekit.causes.markers import GRAPH_UPDATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Ints
    from tracekit.dataset.opening import Dataset

_WORK = ["call_id", "module_id", "method", "dur_ns", "range_id", "graph_id", "graph_node_id"]
_OUTPUTS = "outputs"
_UNATTRIBUTED = ["module_id", "range_id", "graph_id", "graph_node_id"]


class Together(NamedTuple):
    """What the calls of a dataset, or of a subtree of one, tell together.

    Attributes:
        recorded: Whether the whole dataset has any work.
        updated: Whether graphs were replayed after they had been updated.
        replays_unplaced: Whether replayed work could not be attributed, or to no single call.
        loses_work: Which modules launched work that no call of them is known for; and a last one for no module.
        shared: Ids of the modules of replayed work of which the single call is not known.
        returned: Ids of the modules of which any call returned tensors.
        told: Ids of the modules of which any call tells what it returned.
    """

    recorded: bool
    updated: bool
    replays_unplaced: bool
    loses_work: Flags
    shared: Ints
    returned: Ints
    told: Ints


def of_tables(
    dataset: Dataset, modules: Hierarchy, calls: pa.Table, unattributed: pa.Table, shared: pa.Table
) -> Together:
    """What calls tell together.

    Args:
        dataset: The dataset, or a subtree of one.
        modules: The hierarchy of all reports.
        calls: Its calls, with ``module_id`` and, where the dataset has them, ``outputs``.
        unattributed: What :func:`unattributed_work` gives.
        shared: What :func:`shared_work` gives.
    """
    returned, told = _outputs(calls)
    return Together(
        recorded=dataset.manifest["rows"]["kernels"] > 0,
        updated=any(row["cause"] == GRAPH_UPDATED.name for row in dataset.manifest["coverage"]),
        replays_unplaced=bool(from_graph(unattributed).any()) or shared.num_rows > 0,
        loses_work=_loses_work(dataset, modules, unattributed, shared),
        shared=np.unique(integers(shared, "module_id")),
        returned=returned,
        told=told,
    )


def _outputs(calls: pa.Table) -> tuple[Ints, Ints]:
    """Ids of the modules of which a call returned tensors, and of which a call tells what it returned."""
    module = integers(calls, "module_id")
    if _OUTPUTS not in calls.column_names:
        return module[:0], module[:0]
    outputs = calls.column(_OUTPUTS)
    returned = np.asarray(pc.fill_null(pc.greater(pc.list_value_length(outputs), 0), fill_value=False))
    return np.unique(module[returned]), np.unique(module[np.asarray(outputs.is_valid())])


def of_reports(parts: Sequence[Dataset], modules: Hierarchy) -> Together:
    """What the calls of several reports tell together, with one report in memory at a time."""
    outputs = [_OUTPUTS] if _OUTPUTS in parts[0].schema("calls").names else []
    return reduce(_both, (_of_report(part, modules, ["module_id", *outputs]) for part in parts))


def _of_report(part: Dataset, modules: Hierarchy, columns: list[str]) -> Together:
    work, calls = part.table("kernels", _WORK), part.table("calls", columns)
    return of_tables(part, modules, calls, unattributed_work(part, work), shared_work(work))


def _both(one: Together, other: Together) -> Together:
    return Together(
        recorded=one.recorded or other.recorded,
        updated=one.updated or other.updated,
        replays_unplaced=one.replays_unplaced or other.replays_unplaced,
        loses_work=one.loses_work | other.loses_work,
        shared=np.union1d(one.shared, other.shared),
        returned=np.union1d(one.returned, other.returned),
        told=np.union1d(one.told, other.told),
    )


def unattributed_work(dataset: Dataset, work: pa.Table) -> pa.Table:
    """The work without a module, which the tables of a subtree do not have."""
    whole = work if dataset.root is None else dataset.whole.table("kernels", _UNATTRIBUTED)
    rows = np.flatnonzero(integers(whole, "module_id") < 0)
    return whole.select(_UNATTRIBUTED).take(pa.array(rows))


def shared_work(work: pa.Table) -> pa.Table:
    """Replayed work of which the module is known, but not from which of several calls its graph was captured."""
    methods = labels(work, "method")
    by_node = np.isin(methods.code, methods.of("graph_node", "graph_order"))
    rows = np.flatnonzero(by_node & (integers(work, "call_id") < 0) & (integers(work, "module_id") >= 0))
    return work.select(["module_id", "dur_ns"]).take(pa.array(rows))


def _loses_work(dataset: Dataset, modules: Hierarchy, unattributed: pa.Table, shared: pa.Table) -> Flags:
    loses = np.zeros(len(modules.path) + 1, dtype=bool)
    loses[modules.rows(shared)] = True
    ids = np.unique(integers(unattributed, "range_id"))
    if ids[ids >= 0].size:
        ranges = dataset.table("ranges", ["range_id", "module_id"])
        rows = np.flatnonzero(np.isin(integers(ranges, "range_id"), ids))
        loses[modules.rows(ranges.take(pa.array(rows)))] = True
    loses[-1] = False
    return loses
