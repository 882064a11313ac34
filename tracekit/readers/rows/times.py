"""Times of rows, as all tables of a report need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes import ENDS_BEFORE_START

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Ints
    from tracekit.recording.tally import Tally


class DamagedRows(Exception):  # noqa: N818
    """Rows that no profiler writes; the message names them."""


def start_and_end(rows: pa.Table, table: str, subject: str, tally: Tally) -> tuple[Ints, Ints]:
    """The times of a table's rows; a row that ends before it starts gets duration 0 and is counted.

    Args:
        rows: Rows of the table.
        table: Its name, for errors.
        subject: What its rows are, for the tally.
        tally: Where losses are counted.

    Raises:
        DamagedRows: If a time is missing.
    """
    for column in ("start", "end"):
        if missing := rows.column(column).null_count:
            raise DamagedRows(f"{missing} rows of {table} have no {column}")
    start, end = integers(rows, "start"), integers(rows, "end")
    if (backwards := int((end < start).sum())) == 0:
        return start, end
    tally.add(subject, ENDS_BEFORE_START, backwards)
    return start, np.maximum(start, end)
