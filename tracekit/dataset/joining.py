"""Joins the datasets of single reports: ``DATASET/<table>.parquet/report=<name>/part-0.parquet``.

The ids of each report already start at a number of their own; only modules are numbered again, since reports share
them. A report whose modules keep their ids is moved as it is.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.causes import LEFT_OUT, LOSSES, REPORT
from tracekit.causes.reports import MODULES_DIFFER
from tracekit.dataset import manifest
from tracekit.dataset.table_files import id_of, part_of
from tracekit.dataset.union import Union, united
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.tables import TABLES, coverage, modules
from tracekit.tables.coverage import Row, table_of
from tracekit.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.progress import Progress
    from tracekit.schema import TableSpec

#: The tables that are partitioned by report.
_PARTED = {table.SPEC.name: table.SPEC for table in TABLES if table.SPEC.name != "modules"}
#: Fields of a single report's manifest that are the same for all reports of a dataset.
_COMMON = ("format", "format_version", "tracekit", manifest.ID)


@dataclass(frozen=True, slots=True)
class Part:
    """The dataset of one report.

    Attributes:
        name: The report's name among the others.
        folder: Where its dataset lies.
        first_id: The number from which its ids are counted.
    """

    name: str
    folder: Path
    first_id: int


def join(folder: Path, parts: list[Part], left_out: list[dict[str, str]], progress: Progress) -> None:
    """Moves the tables of several datasets into one, each table of each report as a partition; last the manifest.

    A table whose modules get other ids is read and written again: row group by row group, or at once where the new
    ids change the order of its rows, two tables at a time.

    Args:
        folder: Where the dataset shall be.
        parts: The datasets of single reports on the same file system; they are used up.
        left_out: Name and problem of each report that could not be read.
        progress: Called with the share that is done.
    """
    union = _united_modules(parts)
    with table_writer(folder / "modules.parquet", modules.SPEC) as writer:
        writer.write_table(union.table, row_group_size=ROW_GROUP)
    entries = [_entry(part, differing) for part, differing in zip(parts, union.differing, strict=True)]
    _move_all(folder, parts, union, progress)
    for part, entry in zip(parts, entries, strict=True):
        shutil.rmtree(part.folder)
        entry[manifest.TABLE_IDS] = {name: _file_id(part_of(folder, name, part.name)) for name in _PARTED}
    manifest.write(folder, _manifest(folder, entries, left_out, union.table.num_rows))
    progress("joining", 1.0)


def _united_modules(parts: list[Part]) -> Union:
    """The modules of all; those of reports that say the same of them are looked at once."""
    alike: dict[tuple[str | None, bool], int] = {}
    numbers = [alike.setdefault(_said_of_modules(part), len(alike)) for part in parts]
    firsts = [parts[numbers.index(number)] for number in range(len(alike))]
    union = united(
        [pq.read_table(part.folder / "modules.parquet") for part in firsts],
        frozenset(number for number, (_, contradictory) in enumerate(alike) if contradictory),
    )
    return Union(
        union.table,
        [union.module_id[number] for number in numbers],
        [union.differing[number] for number in numbers],
        [union.renamed[number] for number in numbers],
    )


def _said_of_modules(part: Part) -> tuple[str | None, bool]:
    """Equal for reports that describe the same modules in the same way: a digest, and whether they contradict it."""
    return _file_id(part.folder / "modules.parquet"), _contradicts_itself(part)


def _contradicts_itself(part: Part) -> bool:
    """Whether one report describes some module in different ways."""
    coverage_rows = manifest.read(part.folder)["coverage"]
    return any(row["cause"] == MODULES_DIFFER.name for row in coverage_rows)


def _file_id(path: Path) -> str | None:
    return id_of(pq.read_metadata(path))


def _manifest(
    folder: Path, entries: list[dict[str, Any]], left_out: list[dict[str, str]], modules_: int
) -> dict[str, Any]:
    """The manifest of the whole dataset."""
    rows = {name: sum(entry["rows"][name] for entry in entries) for name in entries[0]["rows"]}
    rows["modules"] = modules_
    return {
        "tracekit": __version__,
        "reports": entries,
        "left_out": left_out,
        "rows": rows,
        manifest.TABLE_IDS: {"modules": _file_id(folder / "modules.parquet")},
        "coverage": _total_coverage(entries, rows),
    }


def _entry(part: Part, differing: int) -> dict[str, Any]:
    """One report's entry in the manifest; modules that differ between reports are counted in its coverage."""
    own = manifest.read(part.folder)
    if differing:
        counted = _with_differing(pq.read_table(part.folder / "coverage.parquet"), differing, own["rows"]["modules"])
        with table_writer(part.folder / "coverage.parquet", coverage.SPEC) as writer:
            writer.write_table(counted)
        own["coverage"], own["rows"]["coverage"] = counted.to_pylist(), counted.num_rows
    about = {name: value for name, value in own.items() if name not in _COMMON}
    return {"name": part.name, "first_id": part.first_id, **about}


def _with_differing(before: pa.Table, differing: int, known: int) -> pa.Table:
    """The table ``coverage`` of one report with its modules that differ from those of other reports."""
    is_own = pc.equal(before.column("cause"), MODULES_DIFFER.name)
    own = pc.sum(before.filter(is_own).column("count")).as_py() or 0
    # The same module may differ between processes of one report and between reports.
    number = min(differing + own, known)
    name = f"modules{LOSSES}"
    row = Row(name, MODULES_DIFFER.name, known=False, number=number, time_ns=0, share=number / known)
    return pa.concat_tables([before.filter(pc.invert(is_own)), table_of([row])]).unify_dictionaries()


def _total_coverage(entries: list[dict[str, Any]], rows: dict[str, int]) -> list[dict[str, Any]]:
    """The coverage of all reports together."""
    totals: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for row in (row for entry in entries for row in entry["coverage"]):
        key = (row["what"], row["cause"], row["known"])
        total = totals.setdefault(key, {**row, "count": 0, "time_ns": 0})
        total["count"] += row["count"]
        total["time_ns"] += row["time_ns"]
    time_ns = sum(row["time_ns"] for row in totals.values() if row["what"] == "kernels")
    wholes = _wholes(entries, rows)
    for row in totals.values():
        if row["what"] == "kernels":
            row["share"] = row["time_ns"] / time_ns if time_ns else 0.0
        else:
            kind = row["what"].removesuffix(LOSSES).removesuffix(LEFT_OUT)
            row["share"] = min(1.0, row["count"] / max(1, wholes.get(kind, rows["kernels"])))
    return list(totals.values())


def _wholes(entries: list[dict[str, Any]], rows: dict[str, int]) -> dict[str, int]:
    """How many there are of each kind of thing that coverage counts."""
    return rows | {
        "launches": sum(entry["launches"] for entry in entries),
        "modules": sum(entry["rows"]["modules"] for entry in entries),
        "processes": sum(len(entry["processes"]) for entry in entries),
        "events": rows["ranges"],
        REPORT: len(entries),
    }


def _move_all(folder: Path, parts: list[Part], union: Union, progress: Progress) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [
            pool.submit(
                _move,
                part.folder / f"{spec.name}.parquet",
                part_of(folder, spec.name, part.name),
                spec,
                new,
                stop,
            )
            for part, new in zip(parts, map(_Renumbering, union.module_id, union.renamed), strict=True)
            for spec in _PARTED.values()
        ]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                progress("joining", done / (len(futures) + 1))
        except BaseException:
            stop.set()
            raise


class _Renumbering(NamedTuple):
    """The new ids and paths of one report's modules.

    Attributes:
        ids: The new id by the old one.
        paths: The new path by the old one, where it changed.
    """

    ids: Ints
    paths: dict[str, str]

    @property
    def changes_nothing(self) -> bool:
        """Whether all modules keep their ids and paths."""
        return not self.paths and bool((self.ids == np.arange(self.ids.size)).all())


def _move(source: Path, target: Path, spec: TableSpec, new: _Renumbering, stop: threading.Event) -> None:
    """Makes a table of one report a partition, with the modules' new ids and paths."""
    target.parent.mkdir(parents=True)
    if new.changes_nothing or all(column.name != "module_id" for column in spec.columns):
        source.rename(target)
    else:
        _rewrite(source, target, spec, new, stop)


def _rewrite(source: Path, target: Path, spec: TableSpec, new: _Renumbering, stop: threading.Event) -> None:
    """Writes a table again; at once if the new ids change the order of its rows."""
    file = pq.ParquetFile(source)
    in_order = "module_id" not in spec.sorted_by or bool((np.diff(new.ids) > 0).all())
    groups = [[group] for group in range(file.num_row_groups)]
    with table_writer(target, spec) as writer:
        for batch in groups if in_order else [[*range(file.num_row_groups)]]:
            if stop.is_set():
                break
            table = _renamed(_renumbered(file.read_row_groups(batch), new.ids), new.paths)
            writer.write_table(table if in_order else _sorted(table, spec), row_group_size=ROW_GROUP)
        if not groups:
            writer.write_table(spec.empty())


def _renumbered(table: pa.Table, ids: Ints) -> pa.Table:
    at = table.schema.get_field_index("module_id")
    new = pa.array(ids).take(table.column(at).combine_chunks())
    return table.set_column(at, table.schema.field(at), new)


def _renamed(table: pa.Table, paths: dict[str, str]) -> pa.Table:
    """The table with the new paths of modules; each distinct path is looked up once."""
    at = table.schema.get_field_index("module")
    if at < 0 or not paths:
        return table
    column = table.column(at).unify_dictionaries().combine_chunks()
    old = column.dictionary.to_pylist()
    words = pa.array([paths.get(path, path) for path in old], column.dictionary.type)
    new = pa.DictionaryArray.from_arrays(column.indices, words)
    return table.set_column(at, table.schema.field(at), new)


def _sorted(table: pa.Table, spec: TableSpec) -> pa.Table:
    """The rows in the promised order, nulls last; equal rows keep their order."""
    last = np.iinfo(np.int64).max
    keys = [np.asarray(table.column(name).cast(pa.int64()).fill_null(last)) for name in reversed(spec.sorted_by)]
    return table.unify_dictionaries().take(pa.array(np.lexsort(keys)))
