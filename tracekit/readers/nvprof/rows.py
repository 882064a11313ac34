"""Rows of nvprof's tables before they mean anything: without rows that stand there twice or have no times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.causes.reports import DUPLICATE_ROW, ENDS_BEFORE_START, TIME_UNKNOWN

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.recording.tally import Tally

#: CUPTI's time of what it did not see.
_UNKNOWN = 0


def distinct_rows(rows: pa.Table, by: str, subject: str, tally: Tally) -> pa.Table:
    """The rows without those that repeat another one in all columns, which are counted.

    Args:
        rows: Rows of a table.
        by: A column in which few rows are equal.
        subject: What its rows are, for the tally.
        tally: Where losses are counted.
    """
    if not rows.num_rows:
        return rows
    alike = _alike(integers(rows, by))
    if not alike.size:
        return rows
    # Only rows alike in one column can be alike in all of them.
    some = rows.take(pa.array(alike))
    columns = [_codes(some.column(name)) for name in some.column_names]
    _, first = np.unique(np.stack(columns), axis=1, return_index=True)
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[alike] = False
    kept[alike[first]] = True
    tally.add(subject, DUPLICATE_ROW, int((~kept).sum()))
    return rows if kept.all() else rows.filter(pa.array(kept))


def _alike(values: Ints) -> Ints:
    """The rows of values that occur several times, in order."""
    order = np.argsort(values, kind="stable")
    equal = values[order[1:]] == values[order[:-1]]
    return np.sort(order[np.append(equal, False) | np.append(False, equal)])


def _codes(column: pa.ChunkedArray) -> Ints:
    """A number for every value, the same for the same."""
    array = column.combine_chunks()
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)


def with_times(rows: pa.Table, subject: str, tally: Tally) -> pa.Table:
    """The rows that have a start; one that has no end ends at its start."""
    if not rows.num_rows or "start" not in rows.column_names:
        return rows
    start, end = (integers(rows, name, null=_UNKNOWN) for name in ("start", "end"))
    rows, end = _started(rows, start != _UNKNOWN, end, subject, tally)
    without_end = end == _UNKNOWN
    if not without_end.any():
        return rows
    tally.add(subject, ENDS_BEFORE_START, int(without_end.sum()))
    ends = pc.if_else(pa.array(without_end), rows.column("start"), rows.column("end"))
    return rows.set_column(rows.column_names.index("end"), "end", ends)


def _started(rows: pa.Table, started: Flags, end: Ints, subject: str, tally: Tally) -> tuple[pa.Table, Ints]:
    if started.all():
        return rows, end
    tally.add(subject, TIME_UNKNOWN, int((~started).sum()))
    return rows.filter(pa.array(started)), end[started]


def shifted(rows: pa.Table, origin: int) -> pa.Table:
    """The rows with times since an origin."""
    for name in ("start", "end"):
        if name in rows.column_names:
            at = rows.column_names.index(name)
            rows = rows.set_column(at, name, pc.subtract(rows.column(name), pa.scalar(origin, pa.int64())))
    return rows
