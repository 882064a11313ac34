"""A recording as rows of Nsight's tables, before they are written: events, and the machine they were recorded on."""

import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import torch
from typing_extensions import override

from tracekit.arrays.types import Ints
from tracekit.capture.schedule import attempt
from tracekit.recording.values import COPY_KINDS
from tracekit.version import __version__

Row = dict[str, Any]
#: Start and end of an event, in nanoseconds.
Span = tuple[int, int]

#: How far the starts of evaluations of one process were moved, by name, thread and start.
Moved = dict[tuple[str, int, int], int]

#: Nsight's numbers and labels for CUpti_ActivityMemoryKind, less one.
MEMORY_LABELS = ("Pageable", "Pinned", "Device", "Array", "Managed")
#: Version of the nsys export schema that the recorder's files follow (that of Nsight Systems 2023.4.4).
_SCHEMA = "3.7.2"
#: Rows that become Python's integers at a time.
_BATCH = 50_000


class IntegerRows(Collection[Row]):
    """Rows of integers of at least 0, by columns, in several parts; others are None."""

    def __init__(self, parts: Sequence[Mapping[str, Ints]] = ()) -> None:
        self._parts = parts

    @override
    def __len__(self) -> int:
        return sum(next(iter(part.values())).size for part in self._parts)

    @override
    def __contains__(self, row: object) -> bool:
        return any(each == row for each in self)

    @override
    def __iter__(self) -> Iterator[Row]:
        for part in self._parts:
            for first in range(0, next(iter(part.values())).size, _BATCH):
                columns = [_with_none(column[first : first + _BATCH]) for column in part.values()]
                yield from (dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True))


def _with_none(column: Ints) -> list[int | None]:
    values: list[int | None] = column.tolist()
    return [value if value is not None and value >= 0 else None for value in values] if column.min() < 0 else values


@dataclass
class Rows:
    """Rows of Nsight's tables. Texts are stored once, in ``strings``; a text's index is its id."""

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
    moved: list[Moved] = field(default_factory=list)

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.kernels or self.memcpys or self.memsets)

    def tables(self) -> dict[str, Collection[Row]]:
        """The rows by name of table.

        Operators are work only where no GPU did any; else those that mark a phase are ranges.
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


class Description(TypedDict):
    """A process and its machine: values for JSON."""

    system: dict[str, str]
    process: Row
    gpus: list[Row]
    gpu_identities: list[str]


def empty_description() -> Description:
    """A description of nothing."""
    return {"system": {}, "process": {}, "gpus": [], "gpu_identities": []}


def machine_tables(rows: Rows, processes: Sequence[Description]) -> dict[str, list[Row]]:
    """Everything in a report that is not an event, by name of table, given the processes that were recorded."""
    tables = {
        "META_DATA_EXPORT": named(_exporter()),
        "TARGET_INFO_SYSTEM_ENV": named(processes[0]["system"]),
        "TARGET_INFO_SESSION_START_TIME": [_session(rows.started_utc_ns)],
        "PROCESSES": list({process["process"]["pid"]: process["process"] for process in processes}.values()),
    }
    if rows.on_device:
        if devices := {gpu["id"]: gpu for process in processes for gpu in process["gpus"]}:
            tables["TARGET_INFO_GPU"] = list(devices.values())
        tables["ENUM_CUDA_MEMCPY_OPER"] = _labels(COPY_KINDS)
        tables["ENUM_CUDA_MEM_KIND"] = _labels(MEMORY_LABELS)
    return tables


def describe_process(warnings: list[str], *, on_device: bool) -> Description:
    """This process and the system and GPUs that it sees."""
    described: Description = {**empty_description(), "system": _system(), "process": _process()}

    def describe_gpus() -> None:
        rows = gpus_of_torch()
        described["gpu_identities"] = [str(torch.cuda.get_device_properties(row["id"]).uuid) for row in rows]
        described["gpus"] = rows

    if on_device:
        # After a kernel failed, the driver answers no more questions.
        attempt(describe_gpus, "the report does not describe the GPUs", warnings)
    return described


def gpus_of_torch() -> list[Row]:
    """The GPUs that torch sees."""
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "id": index,
            "name": gpu.name,
            "smCount": gpu.multi_processor_count,
            "totalMemory": gpu.total_memory,
            "computeMajor": gpu.major,
            "computeMinor": gpu.minor,
        }
        for index, gpu in enumerate(devices)
    ]


def uses_gpu() -> bool:
    """Whether this process has begun to use a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def built_for_cuda() -> bool:
    """Whether this build of torch supports NVIDIA GPUs."""
    return torch.version.cuda is not None


def _exporter() -> dict[str, str]:
    numbers = dict(zip(("MAJOR", "MINOR", "MICRO"), _SCHEMA.split("."), strict=True))
    return {
        "EXPORT_PRODUCT_NAME": "tracekit",
        "EXPORT_PRODUCT_VERSION": f"tracekit {__version__}",
        "EXPORT_SCHEMA_VERSION": _SCHEMA,
        **{f"EXPORT_SCHEMA_VERSION_{name}": number for name, number in numbers.items()},
    }


def _system() -> dict[str, str]:
    return {
        "CpuArchitecture": platform.machine(),
        "CpuCores": str(os.cpu_count()),
        "OsVersion": platform.system(),
        "PythonVersion": platform.python_version(),
        "TorchVersion": str(torch.__version__),
        "CudaVersion": str(torch.version.cuda or "none"),
    }


def _session(started_utc_ns: int) -> Row:
    started = datetime.fromtimestamp(started_utc_ns // 10**9, tz=UTC)
    return {
        "utcEpochNs": started_utc_ns,
        "utcTime": f"{started:%Y-%m-%dT%H:%M:%S}",
        "localTime": f"{started.astimezone():%Y-%m-%dT%H:%M:%S}",
    }


def _process() -> Row:
    pid = os.getpid()
    comm = Path("/proc/self/comm")
    name = comm.read_text("utf-8", "replace").strip() if comm.exists() else "python"
    if (rank := os.environ.get("RANK", "")).isdecimal() and "WORLD_SIZE" in os.environ:  # as torchrun sets them
        name = f"{name} rank{rank}"
    return {"globalPid": global_tid(pid, 0), "pid": pid, "name": name}


def named(values: Mapping[str, object]) -> list[Row]:
    """Values by name as rows."""
    return [{"name": name, "value": value} for name, value in values.items()]


def _labels(labels: Sequence[str]) -> list[Row]:
    return [{"id": number, "name": label, "label": label} for number, label in enumerate(labels)]
