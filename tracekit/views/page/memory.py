"""Memory over a step: what each module allocated and kept, and how much was held as its calls returned."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.arrays.codes import positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.nodes import Nodes
from tracekit.views.page.timeline import chosen, described

_COLUMNS = ("call_id", "parent_call_id", "module_id", "end_ns", "step_id", "allocated_bytes", "retained_bytes")


def memory(dataset: Dataset, modules: Hierarchy, nodes: Nodes, steps: pd.DataFrame) -> dict[str, Any]:
    """The memory of the first step of the timeline, or of a recording without steps.

    Returns:
        ``step`` (null without steps); ``rows``: for modules on the page (``module``) their ``calls``, and in these with
        all below ``allocated_bytes`` and ``retained_bytes``, the most allocated first; ``held``: at the returns of
        calls, in columns, ``at_ns`` (from the first one) and ``bytes`` more than at the start of the step, with the
        ``module`` that returned. No rows if the report records no allocations.
    """
    choices = chosen(steps)
    step = described(steps, *choices[0]) if choices else None
    name = steps[REPORT].iloc[choices[0][0]] if choices and REPORT in steps else None
    part = next(part for part in dataset.by_report() if name in (None, *part.reports))
    calls = part.table("calls", list(_COLUMNS))
    known = np.asarray(calls.column("allocated_bytes").is_valid())
    if step is not None:
        known &= integers(calls, "step_id") == step["step_id"]
    calls = calls.filter(pa.array(known))
    place = np.full(len(modules.path) + 1, -1, dtype=np.int64)
    place[nodes.rows] = np.arange(nodes.rows.size)
    module = place[modules.rows(calls)]
    return {"step": step, "rows": _rows(calls, module, nodes.rows.size), "held": _held(calls, module)}


def _rows(calls: pa.Table, module: Rows, size: int) -> list[dict[str, int]]:
    allocated, retained = (
        sums(module, integers(calls, f"{name}_bytes", 0), size) for name in ("allocated", "retained")
    )
    order = np.argsort(-allocated, kind="stable")[: limits.MEMORY_ROWS]
    columns = {"module": order, "calls": counts(module, size)[order]}
    columns |= {"allocated_bytes": allocated[order], "retained_bytes": retained[order]}
    rows = pd.DataFrame(columns)
    return records(rows[(rows["allocated_bytes"] != 0) | (rows["retained_bytes"] != 0)])


def _held(calls: pa.Table, module: Rows) -> dict[str, list[int]]:
    """What was held after each call: the sum of what all until then kept themselves, without the calls inside them."""
    parent = positions(integers(calls, "parent_call_id"), integers(calls, "call_id"))
    retained = integers(calls, "retained_bytes", 0)
    order = np.argsort(integers(calls, "end_ns"), kind="stable")
    held = np.cumsum((retained - sums(parent, retained, retained.size))[order])
    if held.size > limits.BARS:
        # Of neighbours the one with the most.
        group = np.arange(held.size) * limits.BARS // held.size
        largest = np.lexsort((-held, group))
        kept = largest[np.searchsorted(group[largest], np.arange(limits.BARS))]
        held, order = held[kept], order[kept]
    at = integers(calls, "end_ns")[order]
    columns = {"at_ns": at - at.min() if at.size else at, "bytes": held, "module": module[order]}
    return {name: column.tolist() for name, column in columns.items()}
