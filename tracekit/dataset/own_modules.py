"""``modules_of_reports.parquet``: the modules of each report before they became one hierarchy with those of others.

From them the hierarchy is made again when a report is added, without reading the reports. Reports with equal modules,
such as the ranks of a job, share one entry.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays.columns import integers
from tracekit.dataset import manifest
from tracekit.dataset.table_files import id_of
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.errors import DatasetError
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables import modules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.dataset.existing import Files

NAME = "modules_of_reports"
_SPEC = TableSpec(
    NAME,
    "The modules of each report alone, in pre-order. Reports with equal modules share one hierarchy.",
    (
        Column("hierarchy", pa.int32(), "Number of the hierarchy, to which manifest.json refers as own_modules."),
        Column("digest", CATEGORY, "Id of the table modules of the report alone."),
        Column("contradicts_itself", pa.bool_(), "Whether a report describes one of its modules in different ways."),
        Column("united_id", pa.int32(), "Id of the module in the table modules of all reports."),
        *modules.SPEC.columns,
    ),
)


class Key(NamedTuple):
    """What makes two hierarchies one: the id of their files, and whether their report contradicts itself."""

    digest: str
    contradicts_itself: bool


class Hierarchy(NamedTuple):
    """The modules that one or more reports have.

    Attributes:
        key: Equal for equal ones.
        table: Their table ``modules``.
        ids: The id of each in the tables of these reports as they lie there.
        paths: Their paths there.
    """

    key: Key
    table: pa.Table
    ids: Ints
    paths: list[str]


#: That of reports without modules, which have no rows in the file, and no number.
NO_MODULES = Key("", contradicts_itself=False)


def nothing() -> Hierarchy:
    """The hierarchy of a report without modules."""
    return Hierarchy(NO_MODULES, modules.SPEC.empty(), np.zeros(0, np.int32), [])


def of_one_report(folder: Path, key: Key) -> Hierarchy:
    """The modules of a dataset of one report."""
    table = _alike(pq.read_table(folder / "modules.parquet"))
    if not table.num_rows:
        return nothing()
    return Hierarchy(key, table, np.arange(table.num_rows, dtype=np.int32), table.column("path").to_pylist())


def _alike(table: pa.Table) -> pa.Table:
    """The table in the form in which equal ones are equal, however they were stored."""
    at = table.schema.get_field_index("kind")
    kind = table.column(at).cast(pa.string()).combine_chunks().dictionary_encode().cast(CATEGORY)
    return modules.SPEC.table({name: table.column(name) for name in table.column_names} | {"kind": kind})


def read(files: Files, listed: Mapping[str, Any]) -> dict[int, Hierarchy]:
    """The hierarchies of a dataset of several reports, by their numbers.

    Args:
        files: The files of the dataset.
        listed: Its manifest.

    Raises:
        DatasetError: If the dataset does not have them, or they cannot be read.
    """
    remedy = "parse all of its reports again, together"
    expected = listed[manifest.TABLE_IDS].get(NAME)
    if expected is None or any("own_modules" not in entry for entry in listed["reports"]):
        problem = "was written by an older tracekit, which did not keep the modules of each report"
        raise DatasetError(files.place, problem, remedy)
    try:
        with pq.ParquetFile(files.readable(NAME, None)) as file:
            table, found = file.read(), id_of(file.metadata)
        united = pq.read_table(files.readable("modules", None), columns=["path"]).column("path").to_pylist()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0]
        raise DatasetError(files.place, f"its table {NAME} cannot be read ({reason})", remedy) from None
    if found != expected:
        raise DatasetError(files.place, f"its table {NAME} is from another parse", "run the command again")
    numbers = integers(table, "hierarchy")
    bounds = [0, *(np.flatnonzero(np.diff(numbers, append=-1)) + 1).tolist()]
    return {int(numbers[start]): _hierarchy(table.slice(start, end - start), united) for start, end in pairwise(bounds)}


def _hierarchy(rows: pa.Table, united: list[str]) -> Hierarchy:
    key = Key(rows.column("digest")[0].as_py(), rows.column("contradicts_itself")[0].as_py())
    ids = integers(rows, "united_id").astype(np.int32)
    table = _alike(rows.select([column.name for column in modules.SPEC.columns]))
    return Hierarchy(key, table, ids, [united[at] for at in ids.tolist()])


def write(folder: Path, hierarchies: Sequence[Hierarchy], united: Sequence[Ints]) -> None:
    """Writes the hierarchies with the ids of their modules in that of all reports."""
    with table_writer(folder / f"{NAME}.parquet", _SPEC) as writer:
        for number, (hierarchy, ids) in enumerate(zip(hierarchies, united, strict=True)):
            writer.write_table(_rows(number, hierarchy, ids), row_group_size=ROW_GROUP)


def _rows(number: int, hierarchy: Hierarchy, ids: Ints) -> pa.Table:
    size = hierarchy.table.num_rows
    digest = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array([hierarchy.key.digest]))
    return _SPEC.table(
        {
            "hierarchy": pa.array(np.full(size, number, np.int32)),
            "digest": digest,
            "contradicts_itself": pa.array(np.full(size, hierarchy.key.contradicts_itself)),
            "united_id": pa.array(ids.astype(np.int32)),
            **{column.name: hierarchy.table.column(column.name) for column in modules.SPEC.columns},
        }
    )
