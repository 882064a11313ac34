"""One stretch as the source of a recording: its own rows of the large tables, the small tables of the whole report."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.ids import GlobalIds, global_threads
from tracekit.readers.nsight.work import WORK_TABLES
from tracekit.readers.stretches.cuts import BEFORE_ALL
from tracekit.readers.stretches.dealing import ROW, file_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tracekit.arrays.types import Flags, Ints
    from tracekit.readers.requests import Request
    from tracekit.readers.source import TableSource
    from tracekit.readers.stretches.cuts import Cuts


#: Tables whose rows are counted: each once.
_COUNTED = (nsight.DIAGNOSTICS.name, nsight.RECORDER.name)


class StretchSource:
    """A stretch, as :class:`~tracekit.readers.source.TableSource` wants it.

    Attributes:
        ids: Global ids of the threads and processes of its recording.
        begin_ns: When it begins, for each of these processes.
        end_ns: When it ends, for each of these processes.
        work_row: Number of every piece of its device work among that of the report.
    """

    def __init__(self, whole: TableSource, strings: pa.Table, folder: Path, cuts: Cuts, stretch: int) -> None:
        self.path = whole.path
        self.tables = whole.tables
        self.beyond = 0
        none: Ints = np.empty(0, dtype=np.int64)
        self.ids = GlobalIds(none, none)
        self.begin_ns, self.end_ns = none, none
        self.work_row = none
        self._whole = whole
        self._strings = strings
        self._folder = folder
        self._cuts = cuts
        self._stretch = stretch

    def values(self, table: str, columns: tuple[str, ...]) -> list[Any]:
        """The rows of a small table; what the recorder counted for the whole report is in the first stretch."""
        if self._stretch and table in _COUNTED:
            return []
        return self._whole.values(table, columns)

    def remove(self) -> None:
        """Removes its rows from the disk."""
        shutil.rmtree(self._folder / str(self._stretch), ignore_errors=True)

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Its rows of the large tables."""
        tables = {name: self._table(name, request) for name, request in requests.items()}
        rows = [integers(tables[name], ROW) for name in WORK_TABLES if ROW in tables[name].column_names]
        self.work_row = np.concatenate(rows) if rows else self.work_row
        tables = {
            name: table.drop_columns([ROW]) if ROW in table.column_names else table for name, table in tables.items()
        }
        self.ids = global_threads(tables)[1]
        pids = self.ids.pids.tolist()
        self.begin_ns = np.array([self._cuts.begin(process, self._stretch) for process in pids], dtype=np.int64)
        self.end_ns = np.array([self._cuts.end(process, self._stretch) for process in pids], dtype=np.int64)
        progress(1.0)
        return tables

    def _table(self, name: str, request: Request) -> pa.Table:
        if name == "strings":
            return self._strings
        path = file_of(self._folder, self._stretch, name)
        if path.exists():
            with pa.ipc.open_stream(path) as stream:
                return request.without_empty(stream.read_all().unify_dictionaries())
        columns = self.tables.get(request.table.name, frozenset())
        return pa.table({column: pa.nulls(0, type_) for column, type_ in request.columns.items() if column in columns})


def repeated(source: StretchSource, process: Ints, start_ns: Ints) -> Flags:
    """Which ranges of the recording are of an earlier stretch, and here only because they reach into this one.

    Args:
        source: The stretch.
        process: Row of the process of every range.
        start_ns: When each began.
    """
    return np.asarray(start_ns < np.append(source.begin_ns, BEFORE_ALL)[process])
