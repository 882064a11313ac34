"""Events as rows of Nsight's tables, before they are written. It knows no profiler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
        threads: ThreadNames.
        strings: The distinct texts.
        started_utc_ns: Time 0, in nanoseconds since 1970.
        numbered: How many of the ranges are our markers.
    """

    ranges: list[Row] = field(default_factory=list)
    api_calls: list[Row] = field(default_factory=list)
    kernels: list[Row] = field(default_factory=list)
    memcpys: list[Row] = field(default_factory=list)
    memsets: list[Row] = field(default_factory=list)
    operators: list[Row] = field(default_factory=list)
    threads: list[Row] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    started_utc_ns: int = 0
    numbered: int = 0

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.kernels or self.memcpys or self.memsets)

    def tables(self) -> dict[str, list[Row]]:
        """The rows by name of table. Operators count as work only where no GPU did any."""
        return {
            "StringIds": [{"id": number, "value": text} for number, text in enumerate(self.strings)],
            "ThreadNames": self.threads,
            "NVTX_EVENTS": self.ranges,
            "CUPTI_ACTIVITY_KIND_RUNTIME": self.api_calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": self.kernels,
            "CUPTI_ACTIVITY_KIND_MEMCPY": self.memcpys,
            "CUPTI_ACTIVITY_KIND_MEMSET": self.memsets,
            "TRACEKIT_CPU_OPS": [] if self.on_device else self.operators,
        }


def global_tid(pid: int, tid: int) -> int:
    """Nsight's 64-bit id of a thread; thread 0 stands for the process."""
    return 1 << 48 | (pid & 0xFFFFFF) << 24 | tid & 0xFFFFFF
