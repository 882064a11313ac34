"""Merges the tables of the processes of one report: the dataset is the one that all processes make together.

The tables of some processes come as streams of Arrow, with ids counted from 0 in each. Modules are joined as those of
several reports are; all rows come into the order of the whole report, and their ids follow from that. Rows that
nothing orders, such as kernels that two processes began in the same nanosecond, have the order of the processes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays.columns import integers, taken
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.own_process import give_back
from tracekit.arrays.types import Ints, Rows
from tracekit.attribution.base import Trace
from tracekit.causes import LEFT_OUT, LOSSES, REPORT
from tracekit.dataset import manifest
from tracekit.dataset.joining import Renumbering, joined_modules, with_new_ids
from tracekit.dataset.opening import id_of
from tracekit.dataset.per_report_modules import Union
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.progress import Progress
from tracekit.tables import TABLES, coverage

#: The tables whose rows are merged, in the order in which that is best begun.
MERGED = ("kernels", "ranges", "calls", "kernel_modules", "api_calls", "waits", "allocations", "steps")
_SPECS = {table.SPEC.name: table.SPEC for table in TABLES}
_PIECE_ROWS = 2 * ROW_GROUP
#: By the end of a column's name, the table to whose rows it refers.
_REFERRED = {"kernel_id": "kernels", "call_id": "calls", "range_id": "ranges", "step_id": "steps"}


def write_part(folder: Path, trace: Trace, progress: Progress) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Writes the tables of some processes into an empty folder; how many rows each has, and those of ``coverage``."""
    rows = dict.fromkeys(_SPECS, 0)
    for done, (spec, build) in enumerate(TABLES, 1):
        with pa.OSFile(str(_place(folder, spec.name)), "wb") as sink, pa.ipc.new_stream(sink, spec.schema()) as writer:
            for piece in build(trace):
                writer.write_table(piece)
                rows[spec.name] += piece.num_rows
        progress("writing", done / len(TABLES))
    return rows, _Mapped(folder, "coverage").rows.to_pylist()


def _place(folder: Path, table: str) -> Path:
    return folder / f"{table}.arrow"


class _Mapped:
    """A table of a part, mapped into memory."""

    def __init__(self, folder: Path, table: str) -> None:
        with _place(folder, table).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.rows = pa.ipc.open_stream(pa.py_buffer(self._map)).read_all()

    def release(self) -> None:
        """Lets go of the memory of what was read; it is read again if it is needed again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


class Merge(NamedTuple):
    """The parts of a report, how many rows of each table they have, and what becomes of the ids of their modules."""

    parts: list[Path]
    rows: Sequence[Mapping[str, int]]
    modules: list[Renumbering]
    first_id: int

    def table(self, name: str, folder: Path, share: Callable[[float], None]) -> None:
        """Writes a table of the dataset."""
        give_back()
        spec, mapped = _SPECS[name], [_Mapped(part, name) for part in self.parts]
        tables = [part.rows for part in mapped]
        order, offsets = self._order(name, tables), self._offsets(name)
        ids = {referred: self._ids(referred) for _, referred in _references(spec.empty())}
        total = int(offsets[-1])
        with table_writer(folder / f"{name}.parquet", spec) as writer:
            for start in range(0, max(total, 1), _PIECE_ROWS):
                rows = order[start : start + _PIECE_ROWS]
                writer.write_table(self._taken(tables, offsets, rows, ids), row_group_size=ROW_GROUP)
                for part in mapped:
                    part.release()
                share(min(1.0, (start + _PIECE_ROWS) / max(total, 1)))

    def _offsets(self, name: str) -> Ints:
        return np.cumsum([0, *(rows[name] for rows in self.rows)])

    def _order(self, name: str, tables: list[pa.Table]) -> Rows:
        """The rows of all parts, one behind the other, in the order of the merged table."""
        if name == "ranges":
            return np.arange(self._offsets(name)[-1])
        if _SPECS[name].sorted_by == ("start_ns",):
            return _in_order(_numbers(tables, "start_ns"))
        if name == "kernel_modules":
            ids = zip(tables, self._ids("kernels"), strict=True)
            return _in_order(np.concatenate([own[integers(table, "kernel_id")] for table, own in ids]))
        last = 1 + max(int(new.ids.max(initial=-1)) for new in self.modules)
        module = [
            np.append(new.ids, last)[integers(table, "module_id")]
            for table, new in zip(tables, self.modules, strict=True)
        ]
        return _in_order(*one_axis([np.concatenate(module)], [_numbers(tables, "start_ns")]))

    def _ids(self, name: str) -> list[Ints]:
        """The new ids of the rows of each part, by the old ones."""
        tables = [_Mapped(part, name).rows for part in self.parts]
        if name == "kernels":  # numbered in the order of their starts, which is not that of the table
            order = _in_order(np.concatenate([np.sort(integers(table, "start_ns")) for table in tables]))
        else:
            order = self._order(name, tables)
        return np.split(self.first_id + _inverse(order), self._offsets(name)[1:-1])

    def _taken(self, tables: list[pa.Table], offsets: Ints, rows: Rows, ids: Mapping[str, list[Ints]]) -> pa.Table:
        part = np.searchsorted(offsets, rows, side="right") - 1
        pieces = []
        for at in np.flatnonzero(np.bincount(part)).tolist():
            own = rows[part == at] - offsets[at]
            in_turn = bool((np.diff(own) == 1).all())
            piece = tables[at].slice(own[0], own.size) if in_turn else taken(tables[at], own)
            for position, referred in _references(piece):
                column = pa.array(ids[referred][at]).take(piece.column(position).combine_chunks())
                piece = piece.set_column(position, piece.schema.field(position), column)
            new = self.modules[at]
            unchanged = "module_id" not in piece.column_names or new.changes_nothing
            pieces.append(piece if unchanged else with_new_ids(piece, new))
        whole = pa.concat_tables(pieces or tables[:1]).unify_dictionaries().combine_chunks()
        return whole if len(pieces) < 2 else taken(whole, _inverse(_in_order(part)))  # noqa: PLR2004


def _references(table: pa.Table) -> Iterator[tuple[int, str]]:
    for at, name in enumerate(table.column_names):
        yield from ((at, referred) for end, referred in _REFERRED.items() if name.endswith(end))


def _numbers(tables: Sequence[pa.Table], column: str) -> Ints:
    return np.concatenate([integers(table, column) for table in tables])


def _in_order(keys: Ints) -> Rows:
    # The keys of each part ascend, and this kind of sorting merges what is sorted.
    return np.argsort(keys, kind="stable")


def _inverse(order: Rows) -> Ints:
    inverse: Ints = np.empty(order.size, np.int64)
    inverse[order] = np.arange(order.size)
    return inverse


def merged_modules(
    folder: Path, parts: list[Path], rows: Sequence[Mapping[str, int]], differing: Sequence[int], first_id: int
) -> tuple[Merge, Union]:
    """Writes the modules of the dataset; then the other tables can be merged.

    ``rows`` says how many rows of each table every part has, ``differing`` how many modules it describes in different
    ways.
    """
    odd = frozenset(at for at, number in enumerate(differing) if number)
    hierarchies = [_Mapped(part, "modules").rows for part in parts]
    called = []
    for table in (_Mapped(part, "calls").rows for part in parts):
        module, first = np.unique(integers(table, "module_id"), return_index=True)
        called.append(dict(zip(module.tolist(), integers(table, "start_ns")[first].tolist(), strict=True)))
    union, new = joined_modules(folder, hierarchies, odd, called)
    return Merge(parts, rows, new, first_id), union


def finish(
    folder: Path,
    about: Mapping[str, Any],
    parts: Sequence[Mapping[str, int]],
    covered: Sequence[Sequence[Mapping[str, Any]]],
    union: tuple[int, int],
) -> None:
    """Writes coverage and the manifest, when all other tables are there.

    ``parts`` says how many rows of each table every part has, ``covered`` is their coverage, ``about`` describes the
    report in the manifest. ``union`` is how many modules there are, and how many are described in different ways.
    """
    rows = {name: sum(part[name] for part in parts) for name in parts[0]} | {"modules": union[0]}
    wholes = {**rows, "launches": about["launches"], "processes": len(about["processes"]), REPORT: 1}
    everywhere = f"{REPORT}{LOSSES}"
    total = manifest.total_coverage([row for part in covered for row in part], wholes, counted_once=everywhere)

    def place(row: Mapping[str, Any]) -> tuple[str, ...]:  # losses come last, by name
        is_loss = row["what"].endswith((LOSSES, LEFT_OUT))
        return (row["what"], row["cause"], row["detail"]) if is_loss else ()

    merged = coverage.with_differing(sorted(total, key=place), union[1], union[0])
    with table_writer(folder / "coverage.parquet", coverage.SPEC) as writer:
        writer.write_table(merged)
    rows["coverage"] = merged.num_rows
    ids = {name: id_of(pq.read_metadata(folder / f"{name}.parquet")) for name in rows}
    fields = {**about, "rows": rows, manifest.TABLE_IDS: ids, "coverage": merged.to_pylist()}
    manifest.write(folder, fields)
