"""Events as rows of Nsight's tables, before they are written. It knows no profiler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
#: Start and end of an event, in nanoseconds.
Span = tuple[int, int]

#: Nsight's numbers and labels for CUpti_ActivityMemcpyKind and, less one, for CUpti_ActivityMemoryKind.
COPY_LABELS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
}
MEMORY_LABELS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


_NONE = -(1 << 63)
_TIMES = ("start", "end")


class IntegerRows(Sequence[Row]):
    """Rows of integers, some of them None, kept by column: millions of them take 8 bytes a value, not a dict a row.

    Attributes:
        zero_ns: What is subtracted from times when a row is read.
    """

    def __init__(self) -> None:
        self.zero_ns = 0
        self._columns: dict[str, array[int]] = {}

    def append(self, row: Row) -> None:
        """Adds a row; all have the same columns."""
        if not self._columns:
            self._columns = {name: array("q") for name in row}
        for name, column in self._columns.items():
            value = row[name]
            column.append(_NONE if value is None else value)

    def replace(self, index: int, name: str, value: int) -> None:
        """Puts another value into a row."""
        self._columns[name][index] = value

    def values(self, name: str) -> Sequence[int]:
        """A column's values as they were added; None is the least integer."""
        return self._columns.get(name, ())

    @override
    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    @override
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._row([column[index] for column in self._columns.values()])

    @override
    def __iter__(self) -> Iterator[Row]:
        return map(self._row, zip(*self._columns.values(), strict=True))

    def _row(self, values: Sequence[int]) -> Row:
        row: Row = dict(zip(self._columns, values, strict=True))
        for name, value in row.items():
            if value == _NONE:
                row[name] = None
            elif name in _TIMES:
                row[name] = value - self.zero_ns
        return row


@dataclass
class Rows:
    """Rows of Nsight's tables. Texts are stored once, in ``strings``; a text's index is its id.

    Attributes:
        ranges: NVTX_EVENTS.
        api_calls: CUPTI_ACTIVITY_KIND_RUNTIME.
        kernels: CUPTI_ACTIVITY_KIND_KERNEL.
        memcpys: CUPTI_ACTIVITY_KIND_MEMCPY.
        memsets: CUPTI_ACTIVITY_KIND_MEMSET.
        operators: Operators, in a table of tracekit's own.
        phases: Operators that tell a phase of the program, as rows of NVTX_EVENTS.
        threads: ThreadNames.
        strings: The distinct texts.
        started_utc_ns: Time 0, in nanoseconds since 1970.
        numbered: How many of the ranges are our markers.
    """

    ranges: IntegerRows = field(default_factory=IntegerRows)
    api_calls: IntegerRows = field(default_factory=IntegerRows)
    kernels: IntegerRows = field(default_factory=IntegerRows)
    memcpys: IntegerRows = field(default_factory=IntegerRows)
    memsets: IntegerRows = field(default_factory=IntegerRows)
    operators: IntegerRows = field(default_factory=IntegerRows)
    phases: IntegerRows = field(default_factory=IntegerRows)
    threads: list[Row] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    started_utc_ns: int = 0
    numbered: int = 0

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.kernels or self.memcpys or self.memsets)

    def count_from(self, zero_ns: int) -> int:
        """From now on, times count from this one. Returns it."""
        work = (self.api_calls, self.kernels, self.memcpys, self.memsets, self.operators)
        for rows in (self.ranges, self.phases, *work):
            rows.zero_ns = zero_ns
        return zero_ns

    def tables(self) -> dict[str, Sequence[Row]]:
        """The rows by name of table. Operators count as work only where no GPU did any.

        Where one did, those that tell a phase of the program are ranges.
        """
        return {
            "StringIds": [{"id": number, "value": text} for number, text in enumerate(self.strings)],
            "ThreadNames": self.threads,
            "NVTX_EVENTS": [*self.ranges, *self.phases] if self.on_device else self.ranges,
            "CUPTI_ACTIVITY_KIND_RUNTIME": self.api_calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": self.kernels,
            "CUPTI_ACTIVITY_KIND_MEMCPY": self.memcpys,
            "CUPTI_ACTIVITY_KIND_MEMSET": self.memsets,
            "TRACEKIT_CPU_OPS": [] if self.on_device else self.operators,
        }


def global_tid(pid: int, tid: int) -> int:
    """Nsight's 64-bit id of a thread; thread 0 stands for the process."""
    return 1 << 48 | (pid & 0xFFFFFF) << 24 | tid & 0xFFFFFF
