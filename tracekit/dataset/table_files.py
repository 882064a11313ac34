"""The files of a dataset's tables: where the rows of each report lie, and how those of one subtree are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays.columns import integers
from tracekit.schema import CATEGORY, Column

if TYPE_CHECKING:
    from tracekit.storage.locations import Location

#: Key of a file's id in its metadata.
FILE_ID = b"tracekit.id"
REPORT = "report"
#: Column of all tables but one that names a row's report, in datasets of several reports.
REPORT_COLUMN = Column(REPORT, CATEGORY, "Name of the report that the row is from.")


class TableFile(NamedTuple):
    """The rows of one report; its name is None if the dataset has only one. ``name`` is that of the file."""

    rows: pq.ParquetFile
    report: str | None
    name: str


def part_of(folder: Path, table: str, report: str) -> Path:
    """The file of a table's rows of one of several reports."""
    return folder / name_of(table, report)


def name_of(table: str, report: str | None, id_: str | None = None) -> str:
    """Where a file is in a dataset; if files are named by their ids, never two of other rows have one name."""
    if report is None:
        return f"{table}.parquet" if id_ is None else f"{table}.parquet/{id_}.parquet"
    return f"{table}.parquet/{REPORT}={report}/{id_ or 'part-0'}.parquet"


def opened(place: Location) -> pq.ParquetFile:
    """Opens a file of a table; of one at a URL only what is asked for is fetched."""
    if isinstance(place, Path):
        return pq.ParquetFile(place)
    if place.protocol.startswith("http") and not place.fs.info(place.path).get("partial"):
        return pq.ParquetFile(pa.BufferReader(place.fs.cat_file(place.path)))  # the server gives only whole files
    # Whatever else is read ahead would be fetched in vain: Arrow knows which bytes it needs.
    return pq.ParquetFile(place.fs.open(place.path, "rb", cache_type="none"), pre_buffer=True)


def id_of(metadata: pq.FileMetaData) -> str | None:
    """The id of a table's file."""
    value = (metadata.metadata or {}).get(FILE_ID)
    return None if value is None else value.decode("utf-8", "replace")


def unmarked(table: pa.Table) -> pa.Table:
    """The rows without the id of their file."""
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key != FILE_ID}
    # Without columns, pyarrow would drop the number of rows.
    return table.replace_schema_metadata(kept) if table.num_columns else table


def named(table: pa.Table, report: str | None) -> pa.Table:
    """The rows with a column ``report``, if the dataset has several reports."""
    if report is None:
        return table
    codes = pa.array(np.zeros(table.num_rows, np.int32))
    names = pa.DictionaryArray.from_arrays(codes, pa.array([report], pa.string()))
    return table.append_column(REPORT_COLUMN.field(), names)


def between(file: pq.ParquetFile, columns: list[str], low: int, high: int) -> pa.Table:
    """The rows whose module is in [low, high); row groups without such modules are not read."""
    leaves = [file.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]
    position = leaves.index("module_id")
    groups = [
        group
        for group in range(file.num_row_groups)
        if _may_hold(file.metadata.row_group(group).column(position).statistics, low, high)
    ]
    table = file.read_row_groups(groups, columns=list(dict.fromkeys([*columns, "module_id"])))
    module = integers(table, "module_id")
    inside = np.flatnonzero((module >= low) & (module < high))
    # In sorted tables a subtree is one slice.
    is_slice = inside.size and inside[-1] - inside[0] + 1 == inside.size
    rows = table.slice(inside[0], inside.size) if is_slice else table.take(pa.array(inside))
    return rows.select(columns)


def _may_hold(statistics: Any, low: int, high: int) -> bool:  # noqa: ANN401 - pyarrow gives it no public type
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < high and statistics.max >= low)
