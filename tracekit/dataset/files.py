"""The files of a dataset's tables: where each report's rows lie, which parse they are of, and those of a subtree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.schema import CATEGORY, Column

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow.parquet as pq

#: What a file says of itself: the key of its id.
FILE_ID = b"tracekit.id"
REPORT = "report"
#: Column of all tables but one that tells a row's report, where there are several.
REPORT_COLUMN = Column(REPORT, CATEGORY, "Name of the report it is from.")


class TableFile(NamedTuple):
    """The rows of one report, whose name is None where there is one only."""

    rows: pq.ParquetFile
    report: str | None


def part_of(folder: Path, table: str, report: str) -> Path:
    """Where a table's rows of one of several reports lie."""
    return folder / f"{table}.parquet" / f"{REPORT}={report}" / "part-0.parquet"


def id_of(metadata: pq.FileMetaData) -> str | None:
    """The id that a file carries."""
    found = (metadata.metadata or {}).get(FILE_ID)
    return None if found is None else found.decode("utf-8", "replace")


def unmarked(table: pa.Table) -> pa.Table:
    """The rows without the id of their file, which they may leave."""
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key != FILE_ID}
    # Without columns, a table would forget how many rows it has.
    return table.replace_schema_metadata(kept) if table.num_columns else table


def named(table: pa.Table, report: str | None) -> pa.Table:
    """The rows with the name of their report, if the dataset has several."""
    if report is None:
        return table
    same = pa.array(np.zeros(table.num_rows, np.int32))
    named = pa.DictionaryArray.from_arrays(same, pa.array([report], pa.string()))
    return table.append_column(REPORT_COLUMN.field(), named)


def between(file: pq.ParquetFile, columns: list[str], low: int, high: int) -> pa.Table:
    """The rows whose module is in [low, high), out of the row groups that can hold some."""
    leaves = [file.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]
    position = leaves.index("module_id")
    groups = [
        group
        for group in range(file.num_row_groups)
        if _may_hold(file.metadata.row_group(group).column(position).statistics, low, high)
    ]
    table = file.read_row_groups(groups, columns=list(dict.fromkeys([*columns, "module_id"])))
    module = np.asarray(table.column("module_id").fill_null(-1))
    inside = np.flatnonzero((module >= low) & (module < high))
    # Sorted tables hold a subtree in one piece.
    whole = inside.size and inside[-1] - inside[0] + 1 == inside.size
    rows = table.slice(inside[0], inside.size) if whole else table.take(pa.array(inside))
    return rows.select(columns)


def _may_hold(statistics: Any, low: int, high: int) -> bool:  # noqa: ANN401 - pyarrow gives it no public type
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < high and statistics.max >= low)
