"""Times and order of rows, as all tables of a report need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.causes import ENDS_BEFORE_START

if TYPE_CHECKING:
    import sqlalchemy as sql

    from tracekit.arrays.types import Ints, Rows
    from tracekit.recording.tally import Tally


class DamagedRows(Exception):  # noqa: N818
    """Rows that no profiler writes; the message names them."""


def start_and_end(rows: pa.Table, table: sql.Table, subject: str, tally: Tally) -> tuple[Ints, Ints]:
    """The times of a table's rows; a row that ends before it starts gets duration 0 and is counted.

    Args:
        rows: Rows of the table.
        table: The table.
        subject: What its rows are, for the tally.
        tally: Where losses are counted.

    Raises:
        DamagedRows: If a time is missing.
    """
    for column in ("start", "end"):
        if missing := rows.column(column).null_count:
            raise DamagedRows(f"{missing} rows of {table.name} have no {column}")
    start, end = integers(rows, "start"), integers(rows, "end")
    if (backwards := int((end < start).sum())) == 0:
        return start, end
    tally.add(subject, ENDS_BEFORE_START, backwards)
    return start, np.maximum(start, end)


def nullable(values: Ints, type_: pa.DataType) -> pa.Array:
    """Integers as an Arrow array in which -1 is null."""
    if not values.size or int(values.max()) < 0:
        return pa.nulls(values.size, type_)
    return pa.array(values, mask=values < 0).cast(type_)


def in_order(table: pa.Table, order: Rows) -> pa.Table:
    """The rows of a table in another order; most reports already have it."""
    return table if bool((order[1:] > order[:-1]).all()) else table.take(pa.array(order))
