"""New ids and paths of modules in tables that are written already, when reports come to share one hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.dataset.writing import ROW_GROUP, table_writer

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.dataset.own_modules import Hierarchy
    from tracekit.schema import TableSpec


@dataclass(frozen=True, slots=True)
class Renumbering:
    """The new ids and paths of one report's modules.

    Attributes:
        ids: The new id by the old one; anything for old ids that the report does not use.
        paths: The new path by the old one, where it changed.
        changes_nothing: Whether all modules keep their ids and paths.
        keeps_order: Whether the ids increase as before.
    """

    ids: Ints
    paths: dict[str, str]
    changes_nothing: bool
    keeps_order: bool


def renumbering(held: Hierarchy, new: Ints, all_paths: list[str]) -> Renumbering:
    """How the modules of a report are renumbered.

    Args:
        held: Its modules with the ids and paths that its tables hold.
        new: The ids that they shall hold.
        all_paths: The paths that they shall hold, by these ids.
    """
    ids = np.zeros(int(held.ids.max(initial=-1)) + 1, dtype=np.int32)
    ids[held.ids] = new
    paths = {old: all_paths[at] for old, at in zip(held.paths, new.tolist(), strict=True) if old != all_paths[at]}
    same = not paths and bool((held.ids == new).all())
    return Renumbering(ids, paths, same, bool((np.diff(new[np.argsort(held.ids)]) > 0).all()))


def concerns(spec: TableSpec) -> bool:
    """Whether a table names modules."""
    return any(column.name == "module_id" for column in spec.columns)


def rewrite(source: Path, target: Path, spec: TableSpec, new: Renumbering, stop: threading.Event) -> None:
    """Writes a table again; at once if the new ids change the order of its rows."""
    in_order = "module_id" not in spec.sorted_by or new.keeps_order
    with pq.ParquetFile(source) as file, table_writer(target, spec) as writer:
        groups = [[group] for group in range(file.num_row_groups)]
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
