"""Datasets of single reports become one dataset of all: ``DIR/<table>.parquet/report=<name>/part-0.parquet``.

Ids were counted apart when the tables were written, so that only modules have to be told from each other anew. A
report whose modules keep their ids is moved as it is.
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

from tracekit.causes import LEFT_OUT, LOSSES, MODULES_DIFFER, REPORT
from tracekit.dataset import manifest
from tracekit.dataset.files import id_of, part_of
from tracekit.dataset.union import united
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.tables import TABLES, coverage, modules
from tracekit.tables.coverage import Row, table_of
from tracekit.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.dataset.union import Union
    from tracekit.progress import Progress
    from tracekit.schema import TableSpec

#: The tables of which each report has a part.
_PARTED = {table.SPEC.name: table.SPEC for table in TABLES if table.SPEC.name != "modules"}
#: What the manifest of a single report says that is the same for all reports of a dataset.
_COMMON = ("format", "format_version", "tracekit", manifest.ID)


@dataclass(frozen=True, slots=True)
class Part:
    """The dataset of one report.

    Attributes:
        name: The report's name among the others.
        folder: Where its dataset lies.
        first_id: From which number its ids are counted.
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
        progress: Told the share that is done.
    """
    union = united(
        [pq.read_table(part.folder / "modules.parquet") for part in parts],
        frozenset(at for at, part in enumerate(parts) if _contradicts_itself(part)),
    )
    with table_writer(folder / "modules.parquet", modules.SPEC) as writer:
        writer.write_table(union.table, row_group_size=ROW_GROUP)
    entries = [_entry(part, differing) for part, differing in zip(parts, union.differing, strict=True)]
    _move_all(folder, parts, union, progress)
    for part, entry in zip(parts, entries, strict=True):
        shutil.rmtree(part.folder)
        entry[manifest.TABLE_IDS] = {
            name: id_of(pq.read_metadata(part_of(folder, name, part.name))) for name in _PARTED
        }
    rows = {name: sum(entry["rows"][name] for entry in entries) for name in entries[0]["rows"]} | {
        "modules": union.table.num_rows
    }
    manifest.write(
        folder,
        {
            "tracekit": __version__,
            "reports": entries,
            "left_out": left_out,
            "rows": rows,
            manifest.TABLE_IDS: {"modules": id_of(pq.read_metadata(folder / "modules.parquet"))},
            "coverage": _totals(entries, rows),
        },
    )
    progress("joining", 1.0)


def _contradicts_itself(part: Part) -> bool:
    """Whether different things are said of some module in one report."""
    rows = manifest.read(part.folder)["coverage"]
    return any(row["cause"] == MODULES_DIFFER.name for row in rows)


def _entry(part: Part, differing: int) -> dict[str, Any]:
    """What the manifest says of one report; modules that differ are counted in its coverage."""
    said = manifest.read(part.folder)
    if differing:
        path = part.folder / "coverage.parquet"
        before = pq.read_table(path)
        own = pc.equal(before.column("cause"), MODULES_DIFFER.name)
        known = said["rows"]["modules"]
        # A module of which its own processes say different things may be one that reports do, too.
        number = min(differing + (pc.sum(before.filter(own).column("count")).as_py() or 0), known)
        row = Row(
            f"modules{LOSSES}",
            MODULES_DIFFER.name,
            known=False,
            number=number,
            time_ns=0,
            share=number / known,
        )
        others = before.filter(pc.invert(own))
        counted = pa.concat_tables([others, table_of([row])]).unify_dictionaries()
        with table_writer(path, coverage.SPEC) as writer:
            writer.write_table(counted)
        said["coverage"], said["rows"]["coverage"] = counted.to_pylist(), counted.num_rows
    about = {name: value for name, value in said.items() if name not in _COMMON}
    return {"name": part.name, "first_id": part.first_id, **about}


def _totals(entries: list[dict[str, Any]], rows: dict[str, int]) -> list[dict[str, Any]]:
    """The coverage of all reports together."""
    total: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for row in (row for entry in entries for row in entry["coverage"]):
        key = (row["what"], row["cause"], row["known"])
        sum_ = total.setdefault(key, {**row, "count": 0, "time_ns": 0})
        sum_["count"] += row["count"]
        sum_["time_ns"] += row["time_ns"]
    time = sum(row["time_ns"] for row in total.values() if row["what"] == "kernels")
    whole = rows | {
        "launches": sum(entry["launches"] for entry in entries),
        "modules": sum(entry["rows"]["modules"] for entry in entries),
        "processes": sum(len(entry["processes"]) for entry in entries),
        "events": rows["ranges"],
        REPORT: len(entries),
    }
    for row in total.values():
        if row["what"] == "kernels":
            row["share"] = row["time_ns"] / time if time else 0.0
        else:
            of = row["what"].removesuffix(LOSSES).removesuffix(LEFT_OUT)
            row["share"] = min(1.0, row["count"] / max(1, whole.get(of, rows["kernels"])))
    return list(total.values())


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
            for part, new in zip(parts, map(_New, union.module_id, union.renamed), strict=True)
            for spec in _PARTED.values()
        ]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                progress("joining", done / (len(futures) + 1))
        except BaseException:
            stop.set()
            raise


class _New(NamedTuple):
    """What the modules of a report become.

    Attributes:
        ids: The new id by the old one.
        paths: The new path by the old one, of those that have got another.
    """

    ids: Ints
    paths: dict[str, str]


def _move(source: Path, target: Path, spec: TableSpec, new: _New, stop: threading.Event) -> None:
    """Makes a table of one report a partition, with the modules' new ids and paths."""
    target.parent.mkdir(parents=True)
    same = not new.paths and bool((new.ids == np.arange(new.ids.size)).all())
    if same or all(column.name != "module_id" for column in spec.columns):
        source.rename(target)
        return
    file = pq.ParquetFile(source)
    in_order = "module_id" not in spec.sorted_by or bool((np.diff(new.ids) > 0).all())
    groups = [[group] for group in range(file.num_row_groups)]
    with table_writer(target, spec) as writer:
        for group in groups if in_order else [[one for some in groups for one in some]]:
            if stop.is_set():
                break
            table = _renamed(_renumbered(file.read_row_groups(group), new.ids), new.paths)
            writer.write_table(table if in_order else _sorted(table, spec), row_group_size=ROW_GROUP)
        if not groups:
            writer.write_table(spec.empty())


def _renumbered(table: pa.Table, ids: Ints) -> pa.Table:
    at = table.schema.get_field_index("module_id")
    new = pa.array(ids).take(table.column(at).combine_chunks())
    return table.set_column(at, table.schema.field(at), new)


def _renamed(table: pa.Table, paths: dict[str, str]) -> pa.Table:
    """The table with other paths of modules; each distinct one is looked up once."""
    at = table.schema.get_field_index("module")
    if at < 0 or not paths:
        return table
    column = table.column(at).unify_dictionaries().combine_chunks()
    old = column.dictionary.to_pylist()
    words = pa.array([paths.get(path, path) for path in old], column.dictionary.type)
    new = pa.DictionaryArray.from_arrays(column.indices, words)
    return table.set_column(at, table.schema.field(at), new)


def _sorted(table: pa.Table, spec: TableSpec) -> pa.Table:
    """The rows in the promised order, nulls last; rows alike in that stay as they were."""
    last = np.iinfo(np.int64).max
    keys = [np.asarray(table.column(name).cast(pa.int64()).fill_null(last)) for name in reversed(spec.sorted_by)]
    return table.unify_dictionaries().take(pa.array(np.lexsort(keys)))
