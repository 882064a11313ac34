"""What a stretch leaves on disk: its tables, as a dataset has them, and what they do not tell about their rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Flags, Ints

#: Rows of a row group: few, since rows are taken out again in another order.
GROUP = 16_384


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch. Its arrays are small, but for those that are read from its folder.

    Attributes:
        folder: Where its tables are.
        threads: Global id of every thread of its recording, ascending; ids are those of the recording's format.
        pids: Process id of every global id of a process.
        first_range: Row of the first range of every thread, and the number of ranges.
        repeated: Rows of the ranges of earlier stretches that reach into this one.
        reaching: Rows of its ranges that reach into later stretches; with those of earlier ones.
        reach_ns: When these end.
        begin_ns: When the stretch begins, by the global id of the process.
        step_counted: Which steps have the number of earlier steps as their index.
        advice: Advice by cause, where it is another than usual.
        about: Fields of the manifest.
    """

    folder: Path
    threads: Ints
    pids: dict[int, int]
    first_range: Ints
    repeated: Ints
    reaching: Ints
    reach_ns: Ints
    begin_ns: dict[int, int]
    step_counted: Flags
    advice: dict[str, str]
    about: dict[str, Any]
    files: dict[str, pq.ParquetFile] = field(default_factory=dict)

    def file(self, table: str) -> pq.ParquetFile:
        """The file of one table, which stays open."""
        if table not in self.files:
            self.files[table] = pq.ParquetFile(self.folder / f"{table}.parquet", memory_map=False)
        return self.files[table]

    def close(self) -> None:
        """Closes its files."""
        for file in self.files.values():
            file.close()
        self.files.clear()

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        return int(self.file(table).metadata.num_rows)

    def column(self, table: str, name: str, null: int = -1) -> Ints:
        """A column of integers; null becomes another number."""
        values = self.file(table).read([name]).column(name).fill_null(null)
        return np.asarray(values)

    def take(self, table: str, rows: Ints) -> pa.Table:
        """Some rows of a table, in any order."""
        file = self.file(table)
        if not rows.size:
            return file.schema_arrow.empty_table()
        groups, group = np.unique(rows // GROUP, return_inverse=True)
        read = file.read_row_groups(groups.tolist())
        at = group * GROUP + rows % GROUP
        # Only the last row group of a table has fewer rows, and it is read last.
        return read.take(pa.array(at)) if bool((np.diff(at) != 1).any()) else read.slice(int(at[0]), at.size)

    def array(self, name: str) -> Ints:
        """An array from its folder, which stays on disk."""
        return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r"))

    def fresh(self, name: str, size: int) -> Ints:
        """A new array in its folder."""
        path = self.folder / f"{name}.npy"
        if not size:
            np.save(path, np.empty(0, dtype=np.int64))
            return np.empty(0, dtype=np.int64)
        new: Ints = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(size,))
        return new
