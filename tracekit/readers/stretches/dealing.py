"""The second pass over a report: each row goes to its stretch, on disk.

Ranges and API calls go by the time of their start; device work goes where its API call is; a range that may be cut is
in every stretch that it reaches, as itself. What names domains and threads is everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.nsight import tables as nsight
from tracekit.readers.stretches.survey import RANGES, NotCuttable, has, processes_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.readers.stretches.cuts import Cuts

#: Where the number of each row of device work in the report stands.
ROW = "row in the report"
#: Rows of a table and a stretch that are written at once, and rows of all that wait for that.
_BATCH_ROWS, _MOST_WAITING = 1 << 16, 1 << 21
#: Ids that leave out more numbers than this for each call are not looked up in a table.
_SPARSEST, _ALWAYS = 8, 1 << 20
_NOWHERE = -1
#: More rows than these in stretches after their own would be most of what there is.
MOST_REPEATED = 1 << 20


class Files:
    """The rows of stretches on disk: an Arrow stream for each table of each stretch that has some."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[tuple[int, str], pa.ipc.RecordBatchStreamWriter] = {}
        self._waiting: defaultdict[tuple[int, str], list[pa.Table]] = defaultdict(list)
        self._rows: defaultdict[tuple[int, str], int] = defaultdict(int)

    def __enter__(self) -> Self:
        """The files themselves."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Writes what waits, unless something was raised."""
        for key in () if kind else list(self._waiting):
            self._write(key)
        for writer in self._writers.values():
            writer.close()

    def add(self, stretch: int, name: str, rows: pa.Table) -> None:
        """Adds rows of a table to a stretch."""
        key = stretch, name
        self._waiting[key].append(rows)
        self._rows[key] += rows.num_rows
        if self._rows[key] >= _BATCH_ROWS:
            self._write(key)
        if sum(self._rows.values()) >= _MOST_WAITING:
            for waiting in list(self._waiting):
                self._write(waiting)

    def add_each(self, stretch: Ints, name: str, rows: pa.Table) -> None:
        """Adds each row to its stretch."""
        if not rows.num_rows:
            return
        order = np.argsort(stretch, kind="stable")
        numbers, begin = np.unique(stretch[order], return_index=True)
        if numbers.size == 1:
            self.add(int(numbers[0]), name, rows)
            return
        for number, own in zip(numbers.tolist(), np.split(order, begin[1:]), strict=True):
            self.add(number, name, rows.take(pa.array(own)))

    def _write(self, key: tuple[int, str]) -> None:
        stretch, name = key
        self._rows.pop(key)
        table = pa.concat_tables(self._waiting.pop(key)).unify_dictionaries().combine_chunks()
        if key not in self._writers:
            path = file_of(self._folder, stretch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[key] = pa.ipc.new_stream(path, table.schema)
        self._writers[key].write_table(table)


def file_of(folder: Path, stretch: int, name: str) -> Path:
    """Where the rows of a table of a stretch are."""
    return folder / str(stretch) / f"{name}.arrow"


class Times(NamedTuple):
    """The least and the greatest time of all rows."""

    first: int
    last: int


class Dealing:
    """Deals rows out; API calls before device work."""

    def __init__(self, cuts: Cuts, files: Files) -> None:
        self._cuts = cuts
        self._files = files
        self._launched = _LaunchedIn()
        self._least: list[int] = []
        self._greatest: list[int] = []
        #: How many rows are also in stretches after their own.
        self.repeated = 0

    @property
    def times(self) -> Times:
        """The times of all rows so far."""
        return Times(min(self._least, default=0), max(self._greatest, default=0))

    def ranges(self, rows: pa.Table) -> None:
        """Deals out rows of NVTX_EVENTS."""
        self._note(rows)
        types = integers(rows, "eventType")
        everywhere = np.isin(types, (nsight.DOMAIN_CREATED, nsight.THREAD_NAMED))
        if everywhere.any():
            self._count(int(everywhere.sum()) * (self._cuts.stretches - 1))
            for each in range(self._cuts.stretches):
                self._files.add(each, "nvtx", rows.filter(pa.array(everywhere)))
            rows, types = rows.filter(pa.array(~everywhere)), types[~everywhere]
        process = processes_of(rows, "globalTid")
        start = integers(rows, "start", null=np.iinfo(np.int64).min)
        stretch = self._cuts.at(process, start)
        self._files.add_each(stretch, "nvtx", rows)
        last = self._cuts.at(process, np.maximum(start, integers(rows, "end", null=np.iinfo(np.int64).min)))
        self._repeat(rows, np.where(np.isin(types, RANGES), stretch, last), last)

    def _repeat(self, rows: pa.Table, stretch: Ints, last: Ints) -> None:
        """Adds ranges to the stretches after their own that they reach."""
        at = np.flatnonzero(last > stretch)
        self._count(int((last - stretch)[at].sum()))
        for row in at.tolist():
            for later in range(int(stretch[row]) + 1, int(last[row]) + 1):
                self._files.add(later, "nvtx", rows.slice(row, 1))

    def _count(self, repeated: int) -> None:
        self.repeated += repeated
        if self.repeated > MOST_REPEATED:
            raise NotCuttable("too many ranges that are open wherever it is cut")

    def calls(self, rows: pa.Table) -> None:
        """Deals out rows of the runtime table.

        Raises:
            NotCuttable: If calls of several stretches have the same id.
        """
        self._note(rows)
        process = processes_of(rows, "globalTid")
        stretch = self._cuts.at(process, integers(rows, "start", null=0))
        known = np.asarray(rows.column("correlationId").is_valid()) & ~has(rows, "eventClass", nsight.BACKTRACE_CLASS)
        self._launched.add(process[known], integers(rows, "correlationId")[known], stretch[known])
        self._files.add_each(stretch, "runtime", rows)

    def work(self, name: str, rows: pa.Table, first_row: int) -> None:
        """Deals out rows of a table of device work.

        Args:
            name: The reader's name of the table.
            rows: Some of its rows.
            first_row: The number of the first of these, among all device work of the report.

        Raises:
            NotCuttable: If it is not recorded whose work some is.
        """
        self._note(rows)
        if rows.column("globalPid").null_count:
            raise NotCuttable("device work of unknown processes")
        process = processes_of(rows, "globalPid")
        stretch = self._launched.at(process, integers(rows, "correlationId", null=_NOWHERE))
        by_time = self._cuts.at(process, integers(rows, "start", null=0))
        rows = rows.append_column(ROW, pa.array(first_row + np.arange(rows.num_rows)))
        self._files.add_each(np.where(stretch < 0, by_time, stretch), name, rows)

    def _note(self, rows: pa.Table) -> None:
        for column in ("start", "end"):
            times = rows.column(column).drop_null()
            if len(times):
                values = np.asarray(times)
                self._least.append(int(values.min()))
                self._greatest.append(int(values.max()))


class _LaunchedIn:
    """In which stretch each API call is, by process and correlation id."""

    def __init__(self) -> None:
        self._stretch: dict[int, Ints] = {}
        self._rows = 0

    def add(self, process: Ints, id_: Ints, stretch: Ints) -> None:
        """Notes some calls. The id 0 is that of none."""
        self._rows += id_.size
        for number in np.unique(process).tolist():
            own = (process == number) & (id_ != 0)
            self._add(number, id_[own], stretch[own])

    def _add(self, process: int, id_: Ints, stretch: Ints) -> None:
        most = int(id_.max(initial=0))
        if int(id_.min(initial=0)) < 0 or most > _SPARSEST * self._rows + _ALWAYS:
            raise NotCuttable("correlation ids that are far apart")
        known = self._stretch.get(process, np.empty(0, dtype=np.int16))
        if most >= known.size:
            grown = np.full(max(most + 1, 2 * known.size), _NOWHERE, dtype=np.int16)
            grown[: known.size] = known
            known = self._stretch[process] = grown
        before = known[id_]
        known[id_] = stretch
        if bool(((before != _NOWHERE) & (before != stretch)).any() or (known[id_] != stretch).any()):
            raise NotCuttable("API calls far apart that have one correlation id")

    def at(self, process: Ints, id_: Ints) -> Ints:
        """The stretch of the call of each id, or -1."""
        stretch = np.full(id_.size, _NOWHERE, dtype=np.int64)
        for number in np.unique(process).tolist():
            known = np.append(self._stretch.get(number, np.empty(0, dtype=np.int16)), np.int16(_NOWHERE))
            own = process == number
            wanted = id_[own]
            stretch[own] = known[np.where((wanted > 0) & (wanted < known.size), wanted, -1)]
        return stretch
