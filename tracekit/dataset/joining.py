"""Joins the datasets of single reports: ``DATASET/<table>.parquet/report=<name>/part-0.parquet``.

The ids of each report already start at a number of their own; only modules are numbered again, since reports share
them. The files of a report whose modules keep their ids are moved as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays.types import Ints
from tracekit.dataset import manifest
from tracekit.dataset.opening import id_of, name_of
from tracekit.dataset.per_report_modules import FirstCalls, Union, alike, united
from tracekit.dataset.writing import ROW_GROUP, do_all, table_writer
from tracekit.progress import Progress
from tracekit.schema import TableSpec
from tracekit.tables import TABLES, coverage, modules

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
    entries = [share.entry for share in shares]
    manifest.write(folder, manifest.of_several(entries, left_out, union.table.num_rows, ids))
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
            last = np.iinfo(np.int64).max
            keys = [table.column(name).cast(pa.int64()).fill_null(last) for name in reversed(spec.sorted_by)]
            table = table.unify_dictionaries().take(pa.array(np.lexsort(keys)))
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
