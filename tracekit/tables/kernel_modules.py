"""``kernel_modules``: which modules each piece of device work serves, and by how much."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Ints, Rows
from tracekit.attribution.base import Trace
from tracekit.flops.kernels import why
from tracekit.flops.tensors import MULTIPLIED
from tracekit.schema import tables
from tracekit.tables.base import category, or_null, pieces
from tracekit.trace.compiled.work import Shares

#: The columns of shares that record FLOPs.
_FLOPS = ("flops", "note")

SPEC = tables.KernelModules.SPEC


def build(trace: Trace) -> Iterator[pa.Table]:
    """One row of weight 1 for every kernel that has a module, and several for one that serves several."""
    module, shares = (np.full(trace.module.size, -1, dtype=np.int32) for _ in range(2))
    module[trace.ids.kernel_id] = trace.module
    shares[trace.ids.kernel_id] = np.where(trace.module >= 0, trace.shares_of_work, -1)
    for rows in pieces(np.flatnonzero(module >= 0)):
        yield SPEC.table(_columns(trace.shares, rows, module[rows], shares[rows]))


def _columns(shares: Shares, kernel: Rows, module: Rows, of_kernel: Rows) -> dict[str, object]:
    """Rows of some kernels; those without shares (negative row) serve one module."""
    shared = of_kernel >= 0
    if not shared.any():
        nothing = dict.fromkeys(_FLOPS, np.full(kernel.size, -1))
        return {"kernel_id": kernel, "module_id": module, "weight": np.ones(kernel.size), **_flops(shares, nothing)}
    number = np.ones(kernel.size, dtype=np.int64)
    number[shared] = np.diff(shares.first)[of_kernel[shared]]
    at = np.repeat(np.arange(kernel.size), number)
    place = np.arange(at.size) - np.repeat(np.cumsum(number) - number, number)
    rows = np.flatnonzero(shared[at])
    source = shares.first[of_kernel[at[rows]]] + place[rows]
    of_row, weight = module[at], np.ones(at.size)
    of_row[rows], weight[rows] = shares.module[source], shares.weight[source]
    flops = {name: np.full(at.size, -1) for name in _FLOPS}
    for name, column in flops.items():
        column[rows] = getattr(shares, name)[source]
    return {"kernel_id": kernel[at], "module_id": of_row, "weight": weight, **_flops(shares, flops)}


def _flops(shares: Shares, columns: dict[str, Ints]) -> dict[str, object]:
    flops, note = columns["flops"], columns["note"]
    dtypes = [note if note in MULTIPLIED else None for note in shares.notes]
    named = np.array([*(dtype is not None for dtype in dtypes), False])[note]
    return {
        "flops": or_null(flops),
        "flops_dtype": category(np.where((flops > 0) & named, note, -1), [dtype or "" for dtype in dtypes]),
        "flops_unknown": category(np.where(flops < 0, note, -1), [why(note) for note in shares.notes]),
    }
