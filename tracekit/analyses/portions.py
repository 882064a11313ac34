"""Device work by the modules that it serves: a fused kernel is a row for each of them, with its portion of the time.

Portions are whole nanoseconds and add up to the kernel's time, so sums over them are those over kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.devices import kernels
from tracekit.arrays.columns import integers
from tracekit.arrays.lookups import positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags, Floats, Ints, Rows
    from tracekit.dataset.opening import Dataset


def portions(dataset: Dataset, columns: Sequence[str]) -> pa.Table:
    """Columns of the device work, a row per kernel and module that it serves; ``module_id`` and ``dur_ns`` are theirs.

    Args:
        dataset: The dataset, or a subtree of one, which holds the portions of its own modules alone.
        columns: Names of columns, ``module_id`` and ``dur_ns`` among them.
    """
    shared = shared_kernels(dataset.whole)
    if not shared.num_rows:
        return kernels(dataset, columns)
    work = kernels(dataset.whole, list(dict.fromkeys([*columns, "kernel_id"])))
    return _of_dataset(dataset, divided(work, shared))


def portions_of(dataset: Dataset, work: pa.Table) -> pa.Table:
    """The portions of some device work of the whole dataset, as :func:`portions` gives them.

    Args:
        dataset: The dataset, or a subtree of one.
        work: Its columns, with ``kernel_id``, ``module_id`` and ``dur_ns``.
    """
    shared = shared_kernels(dataset.whole)
    return _of_dataset(dataset, divided(work, shared) if shared.num_rows else work)


def divided(work: pa.Table, shared: pa.Table) -> pa.Table:
    """Device work, a row per kernel and module that it serves.

    Args:
        work: Its columns, with ``kernel_id``, ``module_id`` and ``dur_ns``.
        shared: What :func:`shared_kernels` says of its dataset.
    """
    kernel = integers(shared, "kernel_id")
    first = np.flatnonzero(first_portions(kernel))
    row = positions(kernel[first], integers(work, "kernel_id"))
    here = row >= 0
    size, start = (np.ones(work.num_rows, dtype=np.int64), np.full(work.num_rows, -1, dtype=np.int64))
    size[row[here]], start[row[here]] = np.diff(np.append(first, kernel.size))[here], first[here]
    rows = np.repeat(np.arange(work.num_rows), size)
    portion = np.flatnonzero(start[rows] >= 0)
    place = portion - (np.cumsum(size) - size)[rows[portion]]
    source = start[rows[portion]] + place
    module, spent = integers(work, "module_id")[rows].astype(np.int64), integers(work, "dur_ns")[rows]
    module[portion] = integers(shared, "module_id")[source]
    weight = np.asarray(shared.column("weight"))[source]
    spent[portion] = _whole_numbers(spent[portion], weight, place == 0)
    return _with(work, rows, module, spent)


def first_portions(kernel: Ints) -> Flags:
    """Which portions are the first of their kernel, by the ids of kernels: those of one stand together."""
    return np.append(True, kernel[1:] != kernel[:-1])[: kernel.size]


def shared_kernels(dataset: Dataset) -> pa.Table:
    """The rows of ``kernel_modules`` of kernels that serve several modules, by kernel and module."""
    table = dataset.table("kernel_modules", ["kernel_id", "module_id", "weight"])
    return table.filter(pc.less(table.column("weight"), 1.0))


def _whole_numbers(time: Ints, weight: Floats, first: Flags) -> Ints:
    """The time of each portion of kernels, whose portions stand together, so that they add up to its time.

    Args:
        time: The time of the kernel of each portion.
        weight: The weight of each portion.
        first: Which are the first of their kernel.
    """
    start = np.maximum.accumulate(np.where(first, np.arange(time.size), 0))
    running = np.cumsum(weight)
    until = running - (running - weight)[start]
    last = np.append(first[1:], True)[: first.size]
    reached = np.where(last, time, np.minimum(np.rint(until * time).astype(np.int64), time))
    return np.where(first, reached, reached - np.append(0, reached)[:-1])


def _with(work: pa.Table, rows: Rows, module: Ints, spent: Ints) -> pa.Table:
    """Some rows of the work, with other modules and times."""
    own = {"module_id": pa.array(module.astype(np.int32), mask=module < 0), "dur_ns": pa.array(spent)}
    others = work.drop_columns(list(own)).take(pa.array(rows))
    columns = [own[name] if name in own else others.column(name) for name in work.column_names]
    return pa.table(columns, names=work.column_names)


def _of_dataset(dataset: Dataset, work: pa.Table) -> pa.Table:
    """The portions of the modules of a subtree, or all."""
    if dataset.root is None:
        return work
    ids = integers(dataset.table("modules", ["module_id"]), "module_id")
    return work.filter(pa.array(np.isin(integers(work, "module_id"), ids)))
