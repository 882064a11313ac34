"""Rows of a report whose times cannot be true.

No session lasts months, so a row that is that far away from all others has lost its time. It is dropped and counted,
before it stretches the axis that all rows share. Times may count from the start of the session or from 1970; a table
that is far away as a whole has another clock, which is not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.causes import ABSURD_TIME
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight_sqlite.rows import DamagedRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Ints
    from tracekit.recording.tally import Tally

#: Larger than any true time, even since 1970: 73 years.
_LAST_NS = 1 << 61
#: Longer than any session: 104 days.
_FARTHEST_NS = 1 << 53
#: Subject in the tally for rows of these tables; all others are device work.
_SUBJECTS = {
    "nvtx": "ranges",
    "runtime": "launches",
    "graph_events": "graphs",
    "node_events": "graphs",
}
_RANGES = (*nsight.PUSH_POP_RANGES, *nsight.START_END_RANGES)


def credible(tables: dict[str, pa.Table], names: dict[str, str], tally: Tally) -> dict[str, pa.Table]:
    """The tables without rows whose time is absurd, which are counted.

    Args:
        tables: Rows by the reader's name for their table.
        names: Nsight's name of each table.
        tally: Where losses are counted.

    Raises:
        DamagedRows: If it holds for all rows of a table that has several.
    """
    bounds = [bound for table in tables.values() for bound in _bounds(table)]
    if not bounds or (max(bounds) - min(bounds) <= _FARTHEST_NS and max(map(abs, bounds)) < _LAST_NS):
        return tables
    middle = _middle([_starts(name, table) for name, table in tables.items()])
    kept = {}
    for name, table in tables.items():
        absurd = _absurd(name, table, middle)
        count = int(absurd.sum())
        if count > 1 and count == np.count_nonzero(_timed(name, table)):
            raise DamagedRows(f"{names[name]} has times that are months or years apart")
        tally.add(_SUBJECTS.get(name, "kernels"), ABSURD_TIME, count)
        kept[name] = table.filter(pa.array(~absurd)) if count else table
    return kept


def _absurd(name: str, table: pa.Table, middle: int) -> Flags:
    """Which rows of a table are absurd, by the table's own clock if it has another than most."""
    timed = _timed(name, table)
    absurd = _far(table, middle)
    if timed.sum() > 1 and bool(absurd[timed].all()):
        absurd = _far(table, _middle([_starts(name, table)]))
    return absurd & timed


def _far(table: pa.Table, middle: int) -> Flags:
    """Which rows have a time too far from the middle for one session."""
    far = np.zeros(table.num_rows, dtype=bool)
    low, high = max(middle - _FARTHEST_NS, 1 - _LAST_NS), min(middle + _FARTHEST_NS, _LAST_NS - 1)
    for column in _columns(table):
        times = integers(table, column, null=middle)
        far |= (times < low) | (times > high)
    return far


def _middle(starts: list[Ints]) -> int:
    """The median of the times that may be true; of two in the middle, the one nearer to 0."""
    times = np.concatenate(starts)
    times = times[(times > -_LAST_NS) & (times < _LAST_NS)]
    if not times.size:
        return 0
    at = (times.size - 1) // 2, times.size // 2
    return int(min(np.partition(times, at)[list(at)].tolist(), key=abs))


def _starts(name: str, table: pa.Table) -> Ints:
    if "start" not in table.column_names:
        return np.empty(0, dtype=np.int64)
    return integers(table, "start", null=_LAST_NS)[_timed(name, table)]


def _timed(name: str, table: pa.Table) -> Flags:
    """Which rows are events of the run; rows that name domains and threads may have any time."""
    if name != "nvtx" or "eventType" not in table.column_names:
        return np.full(table.num_rows, "start" in table.column_names)
    return np.isin(integers(table, "eventType"), _RANGES)


def _columns(table: pa.Table) -> list[str]:
    return [column for column in ("start", "end") if column in table.column_names]


def _bounds(table: pa.Table) -> Iterator[int]:
    """The least and the greatest time of a table."""
    for column in _columns(table):
        yield from (bound for bound in pc.min_max(table.column(column)).as_py().values() if bound is not None)
