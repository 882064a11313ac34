"""Memory over a step: what each module allocated and kept, and how much was held meanwhile."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.arrays.codes import joint
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.nodes import Nodes
from tracekit.views.page.timeline import chosen, described

_OF_CALLS = ("module_id", "step_id", "allocated_bytes", "retained_bytes")
_OF_ALLOCATIONS = ("start_ns", "pid", "device", "bytes", "module_id", "step_id")


def memory(dataset: Dataset, modules: Hierarchy, nodes: Nodes, steps: pd.DataFrame) -> dict[str, Any]:
    """The memory of the first step of the timeline, or of a recording without steps.

    Returns:
        ``step`` (null without steps); ``rows``: for modules on the page (``module``) their ``calls``, and in these with
        all below ``allocated_bytes`` and ``retained_bytes``, the most allocated first; ``held``: after each allocation
        and each free, in columns, ``at_ns`` (from the first one) and ``bytes`` more than at the start of the step,
        with the ``module`` around it. No rows if the report records no allocations.
    """
    choices = chosen(steps)
    step = described(steps, *choices[0]) if choices else None
    name = steps[REPORT].iloc[choices[0][0]] if choices and REPORT in steps else None
    part = next(part for part in dataset.by_report() if name in (None, *part.reports))
    if "allocations" not in part.tables:
        return {"step": step, "rows": [], "held": {}}
    calls, allocations = part.table("calls", list(_OF_CALLS)), part.table("allocations", list(_OF_ALLOCATIONS))
    calls = calls.filter(calls.column("allocated_bytes").is_valid())
    if step is not None:
        calls, allocations = (
            table.filter(pa.array(integers(table, "step_id") == step["step_id"])) for table in (calls, allocations)
        )
    place = np.full(len(modules.path) + 1, -1, dtype=np.int64)
    place[nodes.rows] = np.arange(nodes.rows.size)
    rows = _rows(calls, place[modules.rows(calls)], nodes.rows.size)
    return {"step": step, "rows": rows, "held": _held(allocations, place[modules.rows(allocations)])}


def _rows(calls: pa.Table, module: Rows, size: int) -> list[dict[str, int]]:
    allocated, retained = (
        sums(module, integers(calls, f"{name}_bytes", 0), size) for name in ("allocated", "retained")
    )
    order = np.argsort(-allocated, kind="stable")[: limits.MEMORY_ROWS]
    columns = {"module": order, "calls": counts(module, size)[order]}
    columns |= {"allocated_bytes": allocated[order], "retained_bytes": retained[order]}
    rows = pd.DataFrame(columns)
    return records(rows[(rows["allocated_bytes"] != 0) | (rows["retained_bytes"] != 0)])


def _held(table: pa.Table, module: Rows) -> dict[str, list[int]]:
    """What was held after each allocation and each free, on the device that held the most."""
    place, size = joint((integers(table, "pid"), integers(table, "device"))), integers(table, "bytes")
    levels = {int(one): np.cumsum(size[place == one]) for one in np.unique(place)}
    on_device = place == max(levels, key=lambda one: levels[one].max(), default=-1)
    held, at, module = np.cumsum(size[on_device]), integers(table, "start_ns")[on_device], module[on_device]
    if held.size > limits.BARS:
        # Of neighbours the one with the most.
        group = np.arange(held.size) * limits.BARS // held.size
        largest = np.lexsort((-held, group))
        kept = largest[np.searchsorted(group[largest], np.arange(limits.BARS))]
        held, at, module = held[kept], at[kept], module[kept]
    columns = {"at_ns": at - at.min() if at.size else at, "bytes": held, "module": module}
    return {name: column.tolist() for name, column in columns.items()}
