"""Modules inside compiled graphs, which have no calls: what kernels served stands below the calls that ran these."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Ints, Rows


class Served(NamedTuple):
    """Modules that kernels of compiled graphs serve, below the calls that ran these, numbered after all calls.

    Attributes:
        of_work: For every portion of work the call, or the served module, that it counts for; -1 for none.
        module: Row of modules of each.
        parent: The call, or served module, around each, or -1.
    """

    of_work: Rows
    module: Rows
    parent: Rows


def served_modules(above: Rows, kernels: pa.Table, call: Rows, module_of_call: Ints) -> Served:
    """Finds them.

    Args:
        above: The module around each module, or -1.
        kernels: The portions of the work of a report.
        call: The call of each, or -1.
        module_of_call: The module of each call.
    """
    method = labels(kernels, "method")
    compiled = np.isin(method.code, method.of("compiled"))
    rows = np.flatnonzero((compiled | (call < 0)) & (integers(kernels, "module_id") >= 0))
    modules = np.append(module_of_call, -1)
    width = above.size + 1
    module = integers(kernels, "module_id")[rows].astype(np.int64)
    wanted = codes = np.where(module == modules[call[rows]], -1, (call[rows] + 1) * width + module)
    found = [np.unique(codes[codes >= 0])]
    while found[-1].size:
        around, inside = np.divmod(found[-1], width)
        outer = above[inside]
        kept = (outer >= 0) & (outer != modules[around - 1])
        found.append(np.unique(around[kept] * width + outer[kept]))
    codes = np.unique(np.concatenate(found))
    around, inside = np.divmod(codes, width)
    outer = above[inside]
    between = (outer >= 0) & (outer != modules[around - 1])
    parent = np.where(between, module_of_call.size + np.searchsorted(codes, around * width + outer), around - 1)
    of_work = call.copy()
    of_work[rows[wanted >= 0]] = module_of_call.size + np.searchsorted(codes, wanted[wanted >= 0])
    return Served(of_work, inside, parent)
