"""Writes the tables of a report out of those of its stretches, some rows at a time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset import manifest
from tracekit.dataset.stretches.columns import Renumbering, with_column
from tracekit.dataset.stretches.coverage import added_up
from tracekit.dataset.stretches.hierarchy import hierarchy_of
from tracekit.dataset.stretches.ids import (
    LAST,
    MOST_ROWS,
    number_calls,
    number_kernels,
    number_ranges,
    number_steps,
    range_slices,
    release,
)
from tracekit.dataset.stretches.order import batches
from tracekit.dataset.table_files import id_of
from tracekit.dataset.writing import ROW_GROUP, numbered, table_writer
from tracekit.tables import TABLES, calls, coverage, kernel_modules, kernels, modules, ranges, steps
from tracekit.tables.coverage import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.dataset.stretches.parts import Part
    from tracekit.progress import Progress
    from tracekit.schema import TableSpec


def merge(folder: Path, parts: Sequence[Part], about: Mapping[str, Any], progress: Progress, first_id: int) -> None:
    """Writes the dataset of a report into an empty folder.

    Args:
        folder: The folder.
        parts: The stretches of the report, those of one process in the order of time; arrays are left in their folders.
        about: Fields of the manifest that describe the report.
        progress: Called with the share that is done.
        first_id: The id of the first row of every table.

    Raises:
        NotCuttable: If stretches do not add up to one report.
    """
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.close)
        number_ranges(parts)
        hierarchy = hierarchy_of(parts, [part.array("range_ids") for part in parts])
        number_calls(parts, hierarchy.module_id)
        number_kernels(parts)
        new = Renumbering(parts, hierarchy.module_id, number_steps(parts), _ranks(about))
        rows: dict[str, int] = {}
        tables: dict[TableSpec, Iterator[pa.Table]] = {
            ranges.SPEC: _ranges(parts, new),
            calls.SPEC: _calls(parts, new),
            kernels.SPEC: _kernels(parts, new),
            kernel_modules.SPEC: _kernel_modules(parts, new),
            modules.SPEC: iter([hierarchy.table]),
            steps.SPEC: iter([_steps(parts, new)]),
        }
        for done, (spec, pieces) in enumerate(tables.items(), 1):
            rows[spec.name] = _write(folder, spec, pieces, first_id)
            progress("writing", done / len(TABLES))
        wholes = {**rows, "launches": about["launches"], "processes": len(about["processes"])}
        table, covered = added_up(parts, _repeated(parts), wholes)
        rows[coverage.SPEC.name] = _write(folder, coverage.SPEC, iter([table]), first_id)
    ids = {name: id_of(pq.read_metadata(folder / f"{name}.parquet")) for name in rows}
    manifest.write(folder, {**about, "rows": rows, manifest.TABLE_IDS: ids, "coverage": covered})
    progress("writing", 1.0)


def _ranks(about: Mapping[str, Any]) -> dict[int, int]:
    return {rank["pid"]: rank["rank"] for rank in about["ranks"]}


def _write(folder: Path, spec: TableSpec, pieces: Iterator[pa.Table], first_id: int) -> int:
    rows = 0
    with table_writer(folder / f"{spec.name}.parquet", spec) as writer:
        for piece in pieces:
            table = numbered(piece.cast(spec.schema()), first_id)
            writer.write_table(table.unify_dictionaries(), row_group_size=ROW_GROUP)
            rows += table.num_rows
        if not rows:
            writer.write_table(spec.empty())
    return rows


def _in_turn(parts: Sequence[Part], new: Renumbering, table: str, taken: Iterator[list[Ints]]) -> Iterator[pa.Table]:
    """Rows of all stretches, batch by batch, each batch end to end."""
    for rows in taken:
        pieces = [
            new.renumbered(number, table, part.take(table, own))
            for number, (part, own) in enumerate(zip(parts, rows, strict=True))
            if own.size
        ]
        release(parts)
        if pieces:
            yield pa.concat_tables(pieces).unify_dictionaries()
            pa.default_memory_pool().release_unused()


def _by_keys(runs: list[tuple[Ints, Ints]], orders: list[Ints]) -> Iterator[list[Ints]]:
    """Rows of all stretches by two keys that they are sorted by in some order."""
    for slices in batches(runs, MOST_ROWS):
        yield [np.asarray(order[rows]) for order, rows in zip(orders, slices, strict=True)]


def _calls(parts: Sequence[Part], new: Renumbering) -> Iterator[pa.Table]:
    runs = [(part.array("call_module"), part.array("call_start")) for part in parts]
    orders = [part.array("call_order") for part in parts]
    for piece in _in_turn(parts, new, "calls", _by_keys(runs, orders)):
        yield piece.take(pa.array(np.argsort(np.asarray(piece.column("call_id")))))


def _kernels(parts: Sequence[Part], new: Renumbering) -> Iterator[pa.Table]:
    runs, orders = [], []
    for part, of_module in zip(parts, new.module_id, strict=True):
        module = np.append(of_module, LAST)[part.column("kernels", "module_id")]
        kernel = part.array("kernel_ids")[part.column("kernels", "kernel_id")]
        order = np.argsort(module, kind="stable")
        for name, key in (("kernel_order", order), ("kernel_module", module[order]), ("kernel_new", kernel[order])):
            part.fresh(name, order.size)[:] = key
        runs.append((part.array("kernel_module"), part.array("kernel_new")))
        orders.append(part.array("kernel_order"))
        part.release()
    for piece in _in_turn(parts, new, "kernels", _by_keys(runs, orders)):
        module = np.asarray(piece.column("module_id").cast(pa.int64()).fill_null(LAST))
        yield piece.take(pa.array(np.lexsort((np.asarray(piece.column("kernel_id")), module))))


def _kernel_modules(parts: Sequence[Part], new: Renumbering) -> Iterator[pa.Table]:
    runs, orders = [], []
    for part in parts:
        kernel = part.array("kernel_ids")[part.column("kernel_modules", "kernel_id")]
        part.fresh("served", kernel.size)[:] = kernel
        part.fresh("served_order", kernel.size)[:] = np.arange(kernel.size)
        runs.append((part.array("served"), part.array("served")))
        orders.append(part.array("served_order"))
        part.release()
    for piece in _in_turn(parts, new, "kernel_modules", _by_keys(runs, orders)):
        keys = (np.asarray(piece.column(name)) for name in ("module_id", "kernel_id"))
        yield piece.take(pa.array(np.lexsort([*keys])))


def _ranges(parts: Sequence[Part], new: Renumbering) -> Iterator[pa.Table]:
    more = _more(parts, new)
    waiting: list[pa.Table] = []
    for number, rows in range_slices(parts):
        for begin in range(rows.start, rows.stop, MOST_ROWS):
            own = np.arange(begin, min(rows.stop, begin + MOST_ROWS))
            waiting.append(_with_more(new.renumbered(number, "ranges", parts[number].take("ranges", own)), more))
            if sum(piece.num_rows for piece in waiting) >= MOST_ROWS:
                yield pa.concat_tables(waiting).unify_dictionaries()
                waiting = []
                release(parts)
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()


def _more(parts: Sequence[Part], new: Renumbering) -> dict[int, tuple[int | None, int | None, int]]:
    """By id of a range what later stretches know of the device work inside: first start, last end, launches."""
    more: dict[int, tuple[int | None, int | None, int]] = {}
    for number, part in enumerate(parts):
        if not part.repeated.size:
            continue
        for row in new.renumbered(number, "ranges", part.take("ranges", part.repeated)).to_pylist():
            before = more.get(row["range_id"], (None, None, 0))
            more[row["range_id"]] = _together(before, (row["gpu_start_ns"], row["gpu_end_ns"], row["gpu_op_count"]))
    return more


def _together(
    one: tuple[int | None, int | None, int], other: tuple[int | None, int | None, int]
) -> tuple[int | None, int | None, int]:
    starts, ends = ([at for at in pair if at is not None] for pair in zip(one[:2], other[:2], strict=True))
    return min(starts, default=None), max(ends, default=None), one[2] + other[2]


def _with_more(table: pa.Table, more: Mapping[int, tuple[int | None, int | None, int]]) -> pa.Table:
    """The ranges with what later stretches know of some of them."""
    ids = np.asarray(table.column("range_id"))
    rows = np.flatnonzero(np.isin(ids, [*more])).tolist()
    names = ("gpu_start_ns", "gpu_end_ns", "gpu_op_count")
    if not rows:
        return table
    values = [table.column(name).to_pylist() for name in names]
    for row in rows:
        together = _together(tuple(column[row] for column in values), more[int(ids[row])])
        for column, value in zip(values, together, strict=True):
            column[row] = value
    for name, column in zip(names, values, strict=True):
        table = with_column(table, name, pa.array(column, table.schema.field(name).type))
    return table


def _repeated(parts: Sequence[Part]) -> dict[str, tuple[int, int]]:
    """By cause in ``coverage`` the number and the time of the ranges that stretches repeat."""
    total: dict[str, tuple[int, int]] = {}
    for part in parts:
        for row in part.take("ranges", part.repeated).to_pylist():
            cause = "marker" if row["marker"] not in (None, "operator") else PLAIN
            number, time_ns = total.get(cause, (0, 0))
            total[cause] = number + 1, time_ns + row["end_ns"] - row["start_ns"]
    return total


def _steps(parts: Sequence[Part], new: Renumbering) -> pa.Table:
    before: dict[int, int] = {}
    tables = []
    for number, part in enumerate(parts):
        table = part.file("steps").read()
        index, pids = table.column("index").to_pylist(), table.column("pid").to_pylist()
        counted = [
            at + before.get(pid, 0) if own else at
            for at, pid, own in zip(index, pids, part.step_counted.tolist(), strict=True)
        ]
        table = with_column(table, "index", pa.array(counted, pa.int64()))
        for pid in pids:
            before[pid] = before.get(pid, 0) + 1
        tables.append(new.renumbered(number, "steps", table))
    whole = pa.concat_tables(tables).unify_dictionaries()
    return whole.take(pc.sort_indices(whole, [("step_id", "ascending")]))
