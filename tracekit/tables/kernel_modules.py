"""``kernel_modules``: which modules each piece of device work serves, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.schema import Column, TableSpec
from tracekit.tables.base import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.attribution.base import Trace

SPEC = TableSpec(
    "kernel_modules",
    "One row per kernel and module that it serves, sorted by kernel_id. A fused kernel can serve "
    "several modules; a kernel without a module has no row.",
    (
        Column("kernel_id", pa.int64(), "The kernel."),
        Column("module_id", pa.int32(), "A module that it serves."),
        Column(
            "weight",
            pa.float64(),
            "Share of the kernel's time for this module, from 0 to 1; the weights of a kernel sum to 1.",
        ),
    ),
    sorted_by=("kernel_id", "module_id"),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """One row of weight 1 for every piece of work that has a module."""
    module = np.full(trace.module.size, -1, dtype=np.int32)
    module[trace.ids.kernel_id] = trace.module
    for rows in pieces(np.flatnonzero(module >= 0)):
        yield SPEC.table({"kernel_id": rows, "module_id": module[rows], "weight": np.ones(rows.size)})
