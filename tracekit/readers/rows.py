"""Rows of a report, whatever wrote it: encoded ids and strings, times, and rows whose times cannot be true.

No session lasts months, so a row that is that far away from all others has lost its time. It is dropped and counted,
before it stretches the axis that all rows share. Times may count from the start of the session or from 1970.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import positions
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Flags, Ints
from tracekit.causes import ABSURD_TIME, ENDS_BEFORE_START, NEVER_ENDED
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import Launches


def integers_or_null(rows: pa.Table, column: str, null: int = -1) -> Ints:
    """An integer column with ``null`` in place of nulls, also where the report has no such column."""
    return integers(rows, column, null) if column in rows.column_names else np.full(rows.num_rows, null, np.int64)


def encoded(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """The distinct values of a dictionary-encoded column, and the row there of each of its values, -1 for null."""
    array = column.combine_chunks()
    rows = array.indices.fill_null(-1) if array.indices.null_count else array.indices
    return array.dictionary, np.asarray(rows)


def occurring(column: pa.ChunkedArray) -> Ints:
    """The distinct values of a dictionary-encoded column that occur in it."""
    values, rows = encoded(column)
    return np.asarray(values, dtype=np.int64)[used_rows(rows, len(values))]


def used_rows(rows: Ints, size: int) -> Ints:
    """The distinct rows of a table of ``size`` rows, without -1, in order."""
    used = np.zeros(size + 1, dtype=bool)
    one = rows.size and rows.min() == rows.max()  # as of most ids of threads and processes
    used[rows[:1] if one else rows] = True
    return np.flatnonzero(used[:-1])


def rows_of(column: pa.ChunkedArray, known: Ints, mask: int = -1) -> Ints:
    """For every value of a dictionary-encoded column its row in the sorted array ``known``; -1 for null or unknown."""
    values, rows = encoded(column)
    row = np.append(positions(np.asarray(values, dtype=np.int64) & mask, known), -1).astype(np.int32)
    return row.take(rows)


class Names:
    """The strings of a report; only those that are looked up are kept, each once."""

    def __init__(self, strings: pa.Table) -> None:
        self._ids, self._values = sorted_strings(strings)
        self._row: dict[str, int] = {}

    @property
    def used(self) -> list[str]:
        """The texts kept so far; a row never changes."""
        return list(self._row)

    def rows(self, table: pa.Table, column: str, spelled: Callable[[str], str] | None = None) -> Ints:
        """Row in ``used`` for every string id; -1 where it is null, or the report has no such string or column.

        ``spelled`` changes a text before it is kept.
        """
        if column not in table.column_names:
            return np.full(table.num_rows, -1, dtype=np.int32)
        return self._rows(self._values, rows_of(table.column(column), self._ids), spelled)

    def rows_of_texts(self, table: pa.Table, column: str) -> Ints:
        """Row in ``used`` for every text; -1 where it is null, or the report has no such column."""
        if column not in table.column_names or table.column(column).null_count == table.num_rows:
            return np.full(table.num_rows, -1, dtype=np.int32)
        return self._rows(*encoded(table.column(column)))

    def _rows(self, values: pa.Array, positions: Ints, spelled: Callable[[str], str] | None = None) -> Ints:
        wanted = used_rows(positions, len(values))
        texts = texts_at(values, wanted)
        row = np.full(len(values) + 1, -1, dtype=np.int32)
        row[wanted] = [self.row(spelled(text) if spelled else text) for text in texts]
        return row.take(positions)

    def known(self, text: str) -> int:
        """Row in ``used`` of one text; -1 if it is not kept."""
        return self._row.get(text, -1)

    def row(self, text: str) -> int:
        """Row in ``used`` of one text, which is kept."""
        return self._row.setdefault(text, len(self._row))


def sorted_strings(strings: pa.Table) -> tuple[Ints, pa.Array]:
    """The string table by id."""
    if not strings.num_rows:
        return np.empty(0, dtype=np.int64), pa.array([], pa.string())
    ids = np.asarray(strings.column("id").fill_null(0), dtype=np.int64)
    values = strings.column("value").combine_chunks()
    if bool((ids[1:] >= ids[:-1]).all()):
        return ids, values
    order = np.argsort(ids, kind="stable")
    return ids[order], values.take(pa.array(order))


def texts_at(values: pa.Array, positions: Ints) -> list[str]:
    """The values at some positions, which ascend, as text.

    Bytes that are not UTF-8 are replaced; a missing text is empty.
    """
    chosen = values if positions.size == len(values) else values.take(pa.array(positions))
    if not chosen.null_count:
        with suppress(UnicodeDecodeError):
            texts: list[str] = chosen.to_pylist()
            return texts
    raw = chosen.cast(pa.binary()).to_pylist()
    return [(text or b"").decode("utf-8", "replace") for text in raw]


def strings_of(strings: pa.Table, ids: Ints) -> dict[int, str]:
    """Some strings by their ids, without those that the report lacks."""
    known, values = sorted_strings(strings)
    wanted = np.flatnonzero(np.isin(known, ids))
    return dict(zip(known[wanted].tolist(), texts_at(values, wanted), strict=True))


class DamagedRows(Exception):  # noqa: N818
    """Rows that no profiler writes; the message names them."""


def start_and_end(rows: pa.Table, table: str, subject: str, counters: LossCounters) -> tuple[Ints, Ints]:
    """The times of a table's rows; a row that ends before it starts gets duration 0 and is counted."""
    for column in ("start", "end"):
        if missing := rows.column(column).null_count:
            raise DamagedRows(f"{missing} rows of {table} have no {column}")
    start, end = integers(rows, "start"), integers(rows, "end")
    backwards = int((end < start).sum())
    counters.add(subject, ENDS_BEFORE_START, backwards)
    return start, np.maximum(start, end) if backwards else end


def times_of_ranges(
    rows: pa.Table, table: str, thread: Ints, launches: Launches, counters: LossCounters
) -> tuple[Ints, Ints, Flags]:
    """The times of ranges, and which never ended: these are closed at the last time seen on their threads.

    Finished launches may outlast them.
    """
    never_ended = np.asarray(rows.column("end").is_null())
    if never_ended.any():
        closed = pc.coalesce(rows.column("end"), rows.column("start"))
        rows = rows.set_column(rows.column_names.index("end"), "end", closed)
    start, end = start_and_end(rows, table, "ranges", counters)
    if not never_ended.any():
        return start, end, never_ended
    last = np.full(int(thread.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, thread, end)
    known = launches.thread < last.size
    np.maximum.at(last, launches.thread[known], launches.end_ns[known])
    counters.add("ranges", NEVER_ENDED, int(never_ended.sum()))
    return start, np.where(never_ended, last[thread], end), never_ended


#: Larger than any true time, even since 1970: 73 years.
LAST_NS = 1 << 61
#: Longer than any session: 104 days.
FARTHEST_NS = 1 << 53


def drop_implausible_times(
    tables: dict[str, pa.Table], subjects: Mapping[str, str], counters: LossCounters
) -> dict[str, pa.Table]:
    """The tables without rows whose time is absurd, which are counted.

    ``subjects`` names what the rows of some tables are; those of all others are device work.
    """
    if are_plausible([bound for table in tables.values() for bound in bounds_of(table)]):
        return tables
    starts = np.concatenate([integers_or_null(table, "start", LAST_NS) for table in tables.values()])
    starts = starts[np.abs(starts) < LAST_NS]
    middle = int(np.partition(starts, (starts.size - 1) // 2)[(starts.size - 1) // 2]) if starts.size else 0
    kept = {}
    for name, table in tables.items():
        absurd = _far(table, middle)
        counters.add(subjects.get(name, "kernels"), ABSURD_TIME, int(absurd.sum()))
        kept[name] = table.filter(pa.array(~absurd))
    return kept


def _far(table: pa.Table, middle: int) -> Flags:
    far = np.zeros(table.num_rows, dtype=bool)
    low, high = max(middle - FARTHEST_NS, 1 - LAST_NS), min(middle + FARTHEST_NS, LAST_NS - 1)
    for column in _columns(table):
        times = integers(table, column, null=middle)
        far |= (times < low) | (times > high)
    return far


def _columns(table: pa.Table) -> list[str]:
    return [column for column in ("start", "end") if column in table.column_names]


def are_plausible(bounds: list[int]) -> bool:
    """Whether times may all be true that lie between these."""
    return not bounds or (max(bounds) - min(bounds) <= FARTHEST_NS and max(map(abs, bounds)) < LAST_NS)


def bounds_of(table: pa.Table) -> Iterator[int]:
    """The earliest and the latest time of each column of times."""
    for column in _columns(table):
        yield from (bound for bound in pc.min_max(table.column(column)).as_py().values() if bound is not None)
