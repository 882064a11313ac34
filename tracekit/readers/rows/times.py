"""Times of rows, as all tables of a report need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes.reports import ENDS_BEFORE_START, NEVER_ENDED

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Flags, Floats, Ints
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


def ends_of_ranges(end: Ints, never_ended: Flags, thread: Ints, launches: pa.Table, tally: Tally) -> Ints:
    """The ends of ranges, of which those that never ended are closed at the last time seen on their threads.

    Args:
        end: Their ends; the start of one that never ended.
        never_ended: Which never ended.
        thread: Their threads.
        launches: The finished launches, which may outlast them.
        tally: Where losses are counted.
    """
    if not never_ended.any():
        return end
    last = np.full(int(thread.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, thread, end)
    launched_on = integers(launches, "thread")
    known = launched_on < last.size
    np.maximum.at(last, launched_on[known], integers(launches, "end_ns")[known])
    tally.add("ranges", NEVER_ENDED, int(never_ended.sum()))
    return np.where(never_ended, last[thread], end)


def nanoseconds(microseconds: Floats) -> Ints:
    """Microseconds with decimals as nanoseconds.

    Their product with 1000 would not be exact, so whole part and decimals are converted separately.
    """
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
