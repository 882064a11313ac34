"""Processes of a report, and reports, become one dataset: ``DATASET/<table>.parquet/report=<name>/part-0.parquet``.

Modules of all are joined into one hierarchy. The ids of each report start at a number of their own, and its files are
moved as they are if its modules keep their ids. The tables of the processes of a report come as streams of Arrow, with
ids counted from 0 in each; they are merged into the dataset that all processes make together: all rows come into the
order of the whole report, and their ids follow from that. Rows that nothing orders, such as kernels that two processes
began in the same nanosecond, have the order of the processes.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.arrays.columns import integers, taken
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.own_process import give_back
from tracekit.arrays.types import Ints, Rows
from tracekit.attribution.base import Trace
from tracekit.causes import LEFT_OUT, LOSSES, REPORT
from tracekit.dataset import manifest
from tracekit.dataset.opening import id_of, name_of
from tracekit.dataset.per_report_modules import FirstCalls, Union, alike, united
from tracekit.dataset.writing import ROW_GROUP, do_all, table_writer
from tracekit.progress import Progress
from tracekit.schema import TableSpec
from tracekit.tables import TABLES, coverage, modules
from tracekit.version import __version__

#: The tables that are partitioned by report.
_PARTED = [table.SPEC for table in TABLES if table.SPEC.name != "modules"]


class Part(NamedTuple):
    """The dataset of one report, which is used up."""

    name: str
    folder: Path
    first_id: int


class _Share(NamedTuple):
    """What one report brings into the dataset: its files, and its entry in the manifest.

    Reports of one ``key`` have one hierarchy: the id of the file of modules, and whether they contradict themselves.
    Hierarchies are joined in the order of these, so that the order of the reports does not matter.
    """

    part: Part
    entry: dict[str, Any]
    key: tuple[str, bool]


def join(folder: Path, parts: Sequence[Part], left_out: list[dict[str, str]], progress: Progress) -> None:
    """Puts the tables of several reports into one dataset, each table of each as a partition; last the manifest.

    A table whose modules get other ids is read and written again, two tables at a time. ``parts`` are the reports in
    the order of their ids, on the file system of ``folder``; ``left_out`` names those that could not be read, and why.
    """
    shares = []
    for part in parts:
        own = manifest.read(part.folder)
        key = own[manifest.TABLE_IDS]["modules"], manifest.differing_in(own["coverage"]) > 0
        shares.append(_Share(part, manifest.entry_of(part.name, part.first_id, own), key))
    keys = sorted({share.key for share in shares})
    folders = {share.key: share.part.folder for share in shares}
    hierarchies = [pq.read_table(folders[key] / "modules.parquet") for key in keys]
    odd = frozenset(at for at, (_, contradicts_itself) in enumerate(keys) if contradicts_itself)
    union, new = joined_modules(folder, hierarchies, odd)
    moves: list[partial[None]] = []
    for share in shares:
        at = keys.index(share.key)
        counted = _count_differing(share.entry, union.differing[at])
        moves += [partial(_move, folder, share, spec, new[at], counted) for spec in _PARTED]
    do_all(moves, 2, "joining", progress)
    for part in parts:
        shutil.rmtree(part.folder)
    ids = {"modules": id_of(pq.read_metadata(folder / "modules.parquet"))}
    whole = {"tracekit": __version__, "left_out": left_out, manifest.TABLE_IDS: ids}
    manifest.write(folder, manifest.of_reports(whole, [share.entry for share in shares], union.table.num_rows))
    progress("joining", 1.0)


def _count_differing(entry: dict[str, Any], others: int) -> pa.Table | None:
    """Notes in a report's entry how many of its modules others describe differently; its new coverage, if any."""
    if not others:
        return None
    # The same module may differ between processes of one report and between reports.
    count = others + manifest.differing_in(entry["coverage"])
    table = coverage.with_differing(entry["coverage"], count, entry["rows"]["modules"])
    entry["coverage"], entry["rows"] = table.to_pylist(), {**entry["rows"], "coverage": table.num_rows}
    return table


def _move(folder: Path, share: _Share, spec: TableSpec, new: Renumbering, counted: pa.Table | None) -> None:
    source, target = share.part.folder / name_of(spec.name, None), folder / name_of(spec.name, share.part.name)
    target.parent.mkdir(parents=True)
    if spec.name == coverage.SPEC.name and counted is not None:
        table = counted
    elif new.changes_nothing or "module_id" not in spec.schema().names:
        source.rename(target)
        return
    else:
        table = with_new_ids(pq.ParquetFile(source).read(), new)
        if "module_id" in spec.sorted_by:
            keys = [(name, "ascending") for name in spec.sorted_by]
            table = table.unify_dictionaries().take(pc.sort_indices(table, keys))
    with table_writer(target, spec) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
    share.entry[manifest.TABLE_IDS][spec.name] = id_of(pq.read_metadata(target))


class Renumbering(NamedTuple):
    """The new ids and paths of one report's modules, by the old ones; only of paths that changed."""

    ids: Ints
    paths: dict[str, str]

    @property
    def changes_nothing(self) -> bool:
        """Whether tables stay as they are."""
        return not self.paths and bool((self.ids == np.arange(self.ids.size)).all())


def joined_modules(
    folder: Path, hierarchies: Sequence[pa.Table], odd: frozenset[int], called: Sequence[FirstCalls] = ()
) -> tuple[Union, list[Renumbering]]:
    """Writes the modules of several reports or processes as one table; what changes in the other tables of each.

    Arguments are those of :func:`united`.
    """
    hierarchies = [alike(table) for table in hierarchies]
    union = united(hierarchies, odd, called)
    with table_writer(folder / "modules.parquet", modules.SPEC) as writer:
        writer.write_table(union.table, row_group_size=ROW_GROUP)
    path = union.table.column("path").to_pylist()
    new = []
    for own, ids in zip(hierarchies, union.module_id, strict=True):
        pairs = zip(own.column("path").to_pylist(), ids.tolist(), strict=True)
        new.append(Renumbering(ids, {old: path[at] for old, at in pairs if old != path[at]}))
    return union, new


def with_new_ids(table: pa.Table, new: Renumbering) -> pa.Table:
    """The table with the new ids and paths of modules; each distinct path is looked up once."""
    at = table.schema.get_field_index("module_id")
    ids = pa.array(new.ids).take(table.column(at).combine_chunks())
    table = table.set_column(at, table.schema.field(at), ids)
    at = table.schema.get_field_index("module")
    if at < 0 or not new.paths:
        return table
    column = table.column(at).unify_dictionaries().combine_chunks()
    words = pa.array([new.paths.get(path, path) for path in column.dictionary.to_pylist()], column.dictionary.type)
    return table.set_column(at, table.schema.field(at), pa.DictionaryArray.from_arrays(column.indices, words))


#: The tables whose rows are merged, in the order in which that is best begun.
MERGED = ("kernels", "ranges", "calls", "kernel_modules", "api_calls", "waits", "allocations", "steps")
_SPECS = {table.SPEC.name: table.SPEC for table in TABLES}
_PIECE_ROWS = 2 * ROW_GROUP
#: By the end of a column's name, the table to whose rows it refers.
_REFERRED = {"kernel_id": "kernels", "call_id": "calls", "range_id": "ranges", "step_id": "steps"}


class Written(NamedTuple):
    """Tables of some processes in a folder: how many rows each has, and those of ``coverage``."""

    folder: Path
    rows: Mapping[str, int]
    coverage: list[dict[str, Any]]


def write_part(folder: Path, trace: Trace, progress: Progress) -> Written:
    """Writes the tables of some processes into an empty folder."""
    rows = dict.fromkeys(_SPECS, 0)
    for done, (spec, build) in enumerate(TABLES, 1):
        with pa.OSFile(str(_place(folder, spec.name)), "wb") as sink, pa.ipc.new_stream(sink, spec.schema()) as writer:
            for piece in build(trace):
                writer.write_table(piece)
                rows[spec.name] += piece.num_rows
        progress("writing", done / len(TABLES))
    return Written(folder, rows, _Mapped(folder, "coverage").rows.to_pylist())


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
    """The parts of a report, what becomes of the ids of their modules, and how many of these are said to differ."""

    parts: Sequence[Written]
    modules: list[Renumbering]
    differing: int
    first_id: int

    def table(self, name: str, folder: Path, share: Callable[[float], None]) -> None:
        """Writes a table of the dataset."""
        give_back()
        spec, mapped = _SPECS[name], [_Mapped(part.folder, name) for part in self.parts]
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
        return np.cumsum([0, *(part.rows[name] for part in self.parts)])

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
        tables = [_Mapped(part.folder, name).rows for part in self.parts]
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

    def finish(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Writes coverage and the manifest, which says ``about`` the report, when all other tables are there."""
        metadata = {name: pq.read_metadata(folder / f"{name}.parquet") for name in _SPECS if name != "coverage"}
        rows = {name: file.num_rows for name, file in metadata.items()}
        wholes = {**rows, "launches": about["launches"], "processes": len(about["processes"]), REPORT: 1}
        parts = [row for part in self.parts for row in part.coverage]
        total = manifest.total_coverage(parts, wholes, counted_once=f"{REPORT}{LOSSES}")

        def place(row: Mapping[str, Any]) -> tuple[str, ...]:  # losses come last, by name
            is_loss = row["what"].endswith((LOSSES, LEFT_OUT))
            return (row["what"], row["cause"], row["detail"]) if is_loss else ()

        merged = coverage.with_differing(sorted(total, key=place), self.differing, rows["modules"])
        with table_writer(folder / "coverage.parquet", coverage.SPEC) as writer:
            writer.write_table(merged)
        metadata["coverage"] = pq.read_metadata(folder / "coverage.parquet")
        fields = {
            "rows": rows | {"coverage": merged.num_rows},
            manifest.TABLE_IDS: {name: id_of(file) for name, file in metadata.items()},
            "coverage": merged.to_pylist(),
        }
        manifest.write(folder, {**about, **fields})


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


def merged_modules(folder: Path, parts: Sequence[Written], first_id: int) -> Merge:
    """Writes the modules of the dataset; then the other tables can be merged."""
    differing = [manifest.differing_in(part.coverage) for part in parts]
    odd = frozenset(at for at, number in enumerate(differing) if number)
    hierarchies = [_Mapped(part.folder, "modules").rows for part in parts]
    called = []
    for table in (_Mapped(part.folder, "calls").rows for part in parts):
        module, first = np.unique(integers(table, "module_id"), return_index=True)
        called.append(dict(zip(module.tolist(), integers(table, "start_ns")[first].tolist(), strict=True)))
    union, new = joined_modules(folder, hierarchies, odd, called)
    return Merge(parts, new, max(union.differing_modules, *differing), first_id)
