"""Rows of a report whose times cannot be true.

No session lasts months, so a row that is that far away from all others has lost its time. It is dropped and counted,
before it stretches the axis that all rows share. Times may count from the start of the session or from 1970; a table
that is far away as a whole has another clock, which is not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.causes.reports import ABSURD_TIME
from tracekit.readers.rows.times import DamagedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.arrays.types import Flags, Ints
    from tracekit.recording.tally import Tally

#: Larger than any true time, even since 1970: 73 years.
LAST_NS = 1 << 61
#: Longer than any session: 104 days.
FARTHEST_NS = 1 << 53


class Naming(NamedTuple):
    """What a reader calls its tables.

    Attributes:
        tables: The report's name of each table.
        subjects: What the rows of some tables are, for the tally; those of all others are device work.
    """

    tables: Mapping[str, str]
    subjects: Mapping[str, str]


def have_start(_: str, table: pa.Table) -> Flags:
    """All rows of a table are events of the run if it has starts."""
    return np.full(table.num_rows, "start" in table.column_names)


def credible(
    tables: dict[str, pa.Table],
    naming: Naming,
    tally: Tally,
    timed: Callable[[str, pa.Table], Flags] = have_start,
) -> dict[str, pa.Table]:
    """The tables without rows whose time is absurd, which are counted.

    Args:
        tables: Rows by the reader's name for their table.
        naming: Names of the tables.
        tally: Where losses are counted.
        timed: Which rows of a table are events of the run; the others may have any time.

    Raises:
        DamagedRows: If it holds for all rows of a table that has several.
    """
    bounds = [bound for table in tables.values() for bound in _bounds(table)]
    if not bounds or (max(bounds) - min(bounds) <= FARTHEST_NS and max(map(abs, bounds)) < LAST_NS):
        return tables
    middle = _middle([_starts(table, timed(name, table)) for name, table in tables.items()])
    kept = {}
    for name, table in tables.items():
        events = timed(name, table)
        absurd = _absurd(table, events, middle)
        count = int(absurd.sum())
        if count > 1 and count == np.count_nonzero(events):
            raise DamagedRows(f"{naming.tables[name]} has times that are months or years apart")
        tally.add(naming.subjects.get(name, "kernels"), ABSURD_TIME, count)
        kept[name] = table.filter(pa.array(~absurd)) if count else table
    return kept


def _absurd(table: pa.Table, timed: Flags, middle: int) -> Flags:
    """Which rows of a table are absurd, by the table's own clock if it has another than most."""
    absurd = _far(table, middle)
    if timed.sum() > 1 and bool(absurd[timed].all()):
        absurd = _far(table, _middle([_starts(table, timed)]))
    return absurd & timed


def _far(table: pa.Table, middle: int) -> Flags:
    """Which rows have a time too far from the middle for one session."""
    far = np.zeros(table.num_rows, dtype=bool)
    low, high = max(middle - FARTHEST_NS, 1 - LAST_NS), min(middle + FARTHEST_NS, LAST_NS - 1)
    for column in _columns(table):
        times = integers(table, column, null=middle)
        far |= (times < low) | (times > high)
    return far


def _middle(starts: list[Ints]) -> int:
    """The median of the times that may be true; of two in the middle, the one nearer to 0."""
    times = np.concatenate(starts)
    times = times[(times > -LAST_NS) & (times < LAST_NS)]
    if not times.size:
        return 0
    at = (times.size - 1) // 2, times.size // 2
    return int(min(np.partition(times, at)[list(at)].tolist(), key=abs))


def _starts(table: pa.Table, timed: Flags) -> Ints:
    if "start" not in table.column_names:
        return np.empty(0, dtype=np.int64)
    return integers(table, "start", null=LAST_NS)[timed]


def _columns(table: pa.Table) -> list[str]:
    return [column for column in ("start", "end") if column in table.column_names]


def _bounds(table: pa.Table) -> Iterator[int]:
    """The least and the greatest time of a table."""
    for column in _columns(table):
        yield from (bound for bound in pc.min_max(table.column(column)).as_py().values() if bound is not None)
