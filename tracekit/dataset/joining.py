"""Joins the datasets of single reports: ``DATASET/<table>.parquet/report=<name>/part-0.parquet``.

The ids of each report already start at a number of their own; only modules are numbered again, since reports share
them. The files of a report whose modules keep their ids are moved as they are; those of a report that is in the
previous dataset are linked, and written again only where ids of its modules change. At a URL, files are named by their
ids and never change, so they stay where they are; only what has to be read is copied here.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays.types import Ints
from tracekit.dataset import manifest, per_report_modules
from tracekit.dataset.opening import id_of, is_named_by_id, name_of, names
from tracekit.dataset.per_report_modules import Hierarchy, Key, united
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.errors import DatasetError
from tracekit.files import linked, reason_of
from tracekit.progress import Progress
from tracekit.schema import TableSpec
from tracekit.storage.locations import Location, reachable
from tracekit.tables import TABLES, coverage, modules

if TYPE_CHECKING:
    from upath import UPath

#: The tables that are partitioned by report.
_PARTED = [table.SPEC for table in TABLES if table.SPEC.name != "modules"]


class FilesOnDisk:
    """The files of a dataset on this machine, which keeps them, or is used up; by table and report, None for all."""

    def __init__(self, folder: Path, *, used_up: bool = False) -> None:
        self.place = folder
        self._used_up = used_up

    def readable(self, table: str, report: str | None) -> Path:
        """Where the file is."""
        return self.place / name_of(table, report)

    def take(self, source: tuple[str, str | None], folder: Path, report: str | None) -> None:
        """Lets a new dataset have the file, which is of that report there."""
        file, target = self.readable(*source), folder / name_of(source[0], report)
        if self._used_up:
            file.rename(target)
        else:
            linked(file, target)


class FilesAtUrl:
    """Those of a dataset at a URL."""

    def __init__(self, place: UPath, fields: Mapping[str, Any], scratch: Path) -> None:
        self.place, self._scratch = place, scratch
        self._names = names(fields)
        self._are_named_by_id = is_named_by_id(fields)

    def readable(self, table: str, report: str | None) -> Path:
        """A copy on this machine."""
        copy = self._scratch / name_of(table, report)
        copy.parent.mkdir(parents=True, exist_ok=True)
        self._copy((table, report), copy)
        return copy

    def take(self, source: tuple[str, str | None], folder: Path, report: str | None) -> None:
        """Leaves the file where it is, if the new dataset has it by the same name."""
        if report != source[1] or not self._are_named_by_id:
            self._copy(source, folder / name_of(source[0], report))

    def _copy(self, source: tuple[str, str | None], target: Path) -> None:
        with reachable(self.place, DatasetError):
            self.place.fs.get_file(f"{self.place.path.rstrip('/')}/{self._names[source]}", str(target))


Files: TypeAlias = FilesOnDisk | FilesAtUrl


@dataclass(frozen=True, slots=True)
class Part:
    """The dataset of one report, which is used up."""

    name: str
    folder: Path
    first_id: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A report that is in a dataset of several, whose files stay as they are."""

    name: str
    files: Files
    manifest: Mapping[str, Any]
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Share:
    """What one report brings into the dataset: its entry, modules and files, and its name in the dataset of these."""

    entry: dict[str, Any]
    hierarchy: Hierarchy
    files: Files
    report: str | None


def join(folder: Path, reports: Sequence[Part | Kept], left_out: list[dict[str, str]], progress: Progress) -> None:
    """Puts the tables of several reports into one dataset, each table of each as a partition; last the manifest.

    A table whose modules get other ids is read and written again: row group by row group, or at once where the new
    ids change the order of its rows, two tables at a time.

    Args:
        folder: Where the dataset shall be, on the file system where the reports' datasets are.
        reports: The reports in the order of their ids.
        left_out: Name and problem of each report that could not be read.
        progress: Called with the share that is done.
    """
    shares = _shares(reports)
    parted = _tables_of_all(shares)
    hierarchies = [one for _, one in sorted({share.hierarchy.key: share.hierarchy for share in shares}.items())]
    place = {one.key: at for at, one in enumerate(hierarchies)}
    union = united(
        [one.table for one in hierarchies], frozenset(at for key, at in place.items() if key.contradicts_itself)
    )
    with table_writer(folder / "modules.parquet", modules.SPEC) as writer:
        writer.write_table(union.table, row_group_size=ROW_GROUP)
    per_report_modules.write(folder, hierarchies, union.module_id)
    paths = union.table.column("path").to_pylist()
    moves: list[Callable[[threading.Event], None]] = []
    for share in shares:
        at = place[share.hierarchy.key]
        counted = _count_differing(share.entry, union.differing[at])
        share.entry["per_report_modules"] = at if share.hierarchy.table.num_rows else None
        new = renumbering(share.hierarchy, union.module_id[at], paths)
        moves += [partial(_move, folder, share, spec, new, counted) for spec in parted]
    _move_all(moves, progress)
    for report in reports:
        if isinstance(report, Part):
            shutil.rmtree(report.folder)
    of_all = "modules", manifest.PER_REPORT_MODULES
    ids = {name: id_of(pq.read_metadata(folder / f"{name}.parquet")) for name in of_all}
    entries = [share.entry for share in shares]
    manifest.write(folder, manifest.of_several(entries, left_out, union.table.num_rows, ids))
    progress("joining", 1.0)


def _shares(reports: Sequence[Part | Kept]) -> list[_Share]:
    known: dict[Key, Hierarchy] = {}
    kept: dict[int, Hierarchy] = {}
    shares = []
    for report in reports:
        if isinstance(report, Part):
            shares.append(_share_of_part(report, known))
        else:
            kept = kept or per_report_modules.read(report.files.place, report.manifest, report.files.readable)
            shares.append(_share_of_kept(report, kept))
    return shares


def _tables_of_all(shares: Sequence[_Share]) -> list[TableSpec]:
    """The tables that all reports have, of which some may be from an earlier tracekit; entries list no others."""
    have = set.intersection(*({*share.entry["rows"]} for share in shares))
    for share in shares:
        for name in ("rows", manifest.TABLE_IDS):
            share.entry[name] = {table: value for table, value in share.entry[name].items() if table in have}
    return [spec for spec in _PARTED if spec.name in have]


def _share_of_part(report: Part, known: dict[Key, Hierarchy]) -> _Share:
    own = manifest.read(report.folder)
    key = Key(own[manifest.TABLE_IDS]["modules"], manifest.differing_in(own["coverage"]) > 0)
    if key not in known:
        known[key] = per_report_modules.of_one_report(report.folder, key)
    entry = manifest.entry_of(report.name, report.first_id, own)
    return _Share(entry, known[key], FilesOnDisk(report.folder, used_up=True), None)


def _share_of_kept(report: Kept, hierarchies: dict[int, Hierarchy]) -> _Share:
    number = report.entry["per_report_modules"]
    hierarchy = per_report_modules.nothing() if number is None else hierarchies[number]
    entry = {**report.entry, "name": report.name, manifest.TABLE_IDS: {**report.entry[manifest.TABLE_IDS]}}
    return _Share(entry, hierarchy, report.files, report.entry["name"])


def _move_all(moves: list[Callable[[threading.Event], None]], progress: Progress) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(move, stop) for move in moves]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                progress("joining", done / (len(futures) + 1))
        except BaseException:
            stop.set()
            raise


def _count_differing(entry: dict[str, Any], others: int) -> pa.Table | None:
    """Notes in a report's entry how many of its modules others describe differently; its new coverage, if any."""
    differing = entry[manifest.DIFFERING]
    if others == differing["others"]:
        return None
    entry[manifest.DIFFERING] = {**differing, "others": others}
    # The same module may differ between processes of one report and between reports.
    table = coverage.with_differing(entry["coverage"], others + differing["itself"], entry["rows"]["modules"])
    entry["coverage"], entry["rows"] = table.to_pylist(), {**entry["rows"], "coverage": table.num_rows}
    return table


def _move(
    folder: Path, share: _Share, spec: TableSpec, new: Renumbering, counted: pa.Table | None, stop: threading.Event
) -> None:
    if stop.is_set():
        return
    target = folder / name_of(spec.name, share.entry["name"])
    target.parent.mkdir(parents=True)
    if spec.name == coverage.SPEC.name and counted is not None:
        with table_writer(target, spec) as writer:
            writer.write_table(counted)
    else:
        with _readable(spec.name, share.files.place):
            if new.changes_nothing or not any(column.name == "module_id" for column in spec.columns):
                share.files.take((spec.name, share.report), folder, share.entry["name"])
                return
            _rewrite(share.files.readable(spec.name, share.report), target, spec, new, stop)
    share.entry[manifest.TABLE_IDS][spec.name] = id_of(pq.read_metadata(target))


@contextmanager
def _readable(table: str, place: Location) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, pa.ArrowException) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error).split("\n", 1)[0]
        problem = f"its table {table} cannot be read ({reason})"
        raise DatasetError(place, problem, "parse all reports again, together") from None


@dataclass(frozen=True, slots=True)
class Renumbering:
    """The new ids and paths of one report's modules, by the old ones; only of paths that changed."""

    ids: Ints
    paths: dict[str, str]
    changes_nothing: bool
    keeps_order: bool


def renumbering(held: Hierarchy, new: Ints, all_paths: list[str]) -> Renumbering:
    """What changes in the tables of a report whose modules are joined with those of others."""
    ids = np.zeros(int(held.ids.max(initial=-1)) + 1, dtype=np.int32)
    ids[held.ids] = new
    paths = {old: all_paths[at] for old, at in zip(held.paths, new.tolist(), strict=True) if old != all_paths[at]}
    same = not paths and bool((held.ids == new).all())
    return Renumbering(ids, paths, same, bool((np.diff(new[np.argsort(held.ids)]) > 0).all()))


def _rewrite(source: Path, target: Path, spec: TableSpec, new: Renumbering, stop: threading.Event) -> None:
    in_order = "module_id" not in spec.sorted_by or new.keeps_order
    with pq.ParquetFile(source) as file, table_writer(target, spec) as writer:
        groups = [[group] for group in range(file.num_row_groups)]
        for batch in groups if in_order else [[*range(file.num_row_groups)]]:
            if stop.is_set():
                break
            table = with_new_ids(file.read_row_groups(batch), new)
            writer.write_table(table if in_order else _sorted(table, spec), row_group_size=ROW_GROUP)
        if not groups:
            writer.write_table(spec.empty())


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


def _sorted(table: pa.Table, spec: TableSpec) -> pa.Table:
    last = np.iinfo(np.int64).max
    keys = [np.asarray(table.column(name).cast(pa.int64()).fill_null(last)) for name in reversed(spec.sorted_by)]
    return table.unify_dictionaries().take(pa.array(np.lexsort(keys)))
