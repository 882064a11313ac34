"""What a stretch leaves on disk: its tables, as a dataset has them, and what they do not tell about their rows."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Flags, Ints

#: Rows of a row group: few, since rows are taken out again in another order.
GROUP = 16_384
_INTEGER = np.dtype(np.int64)


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
    maps: dict[str, _Mapped] = field(default_factory=dict)

    def file(self, table: str) -> pq.ParquetFile:
        """The file of one table, which stays open."""
        if table not in self.files:
            self.files[table] = pq.ParquetFile(self.folder / f"{table}.parquet", memory_map=False)
        return self.files[table]

    def close(self) -> None:
        """Closes its files and arrays."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.maps.clear()

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
        if name not in self.maps:
            self.maps[name] = _mapped(self.folder / name)
        return self.maps[name].array

    def fresh(self, name: str, size: int) -> Ints:
        """A new array in its folder."""
        with (self.folder / name).open("wb") as file:
            file.truncate(size * _INTEGER.itemsize)
        self.maps.pop(name, None)
        return self.array(name)

    def release(self) -> None:
        """Frees the memory that holds arrays which are on disk anyway."""
        for one in self.maps.values():
            one.release()


class _Mapped(NamedTuple):
    """A file as an array."""

    array: Ints
    memory: mmap.mmap | None

    def release(self) -> None:
        """Leaves the array to the disk until it is used again."""
        if self.memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED)


def _mapped(path: Path) -> _Mapped:
    if not path.stat().st_size:  # which cannot be mapped
        return _Mapped(np.empty(0, dtype=_INTEGER), None)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    return _Mapped(np.frombuffer(memory, dtype=_INTEGER), memory)
