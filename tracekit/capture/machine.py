"""Describes the machine that a program was recorded on, as rows of Nsight's tables."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch

from tracekit.capture.rows import COPY_LABELS, MEMORY_LABELS, global_tid
from tracekit.capture.schedule import attempt
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.capture.rows import Row, Rows

#: Version of the nsys export schema that the recorder's files follow (that of Nsight Systems 2023.4.4).
_SCHEMA = "3.7.2"
_NO_GPUS = "the report does not describe the GPUs"


class Description(TypedDict):
    """What a process says of itself: values for JSON."""

    system: dict[str, str]
    process: Row
    gpus: list[Row]
    gpu_identities: list[str]


def nothing_known() -> Description:
    """A description that is still empty."""
    return {"system": {}, "process": {}, "gpus": [], "gpu_identities": []}


def about(
    rows: Rows, warnings: list[str] | None = None, processes: Sequence[Description] | None = None
) -> dict[str, list[Row]]:
    """Everything in a report that is not an event, by name of table.

    Args:
        rows: The events.
        warnings: Receives a warning if the machine cannot be described in full.
        processes: What the recorded processes said of themselves; None means that this one was recorded.
    """
    if processes is None:
        processes = [description([] if warnings is None else warnings, on_device=rows.on_device)]
    tables = {
        "META_DATA_EXPORT": _pairs(_exporter()),
        "TARGET_INFO_SYSTEM_ENV": _pairs(processes[0]["system"] if processes else _system()),
        "TARGET_INFO_SESSION_START_TIME": [_session(rows.started_utc_ns)],
        "PROCESSES": list({process["process"]["pid"]: process["process"] for process in processes}.values()),
    }
    if rows.on_device:
        if devices := {gpu["id"]: gpu for process in processes for gpu in process["gpus"]}:
            tables["TARGET_INFO_GPU"] = list(devices.values())
        tables["ENUM_CUDA_MEMCPY_OPER"] = _labels(COPY_LABELS)
        tables["ENUM_CUDA_MEM_KIND"] = _labels(MEMORY_LABELS)
    return tables


def description(warnings: list[str], *, on_device: bool) -> Description:
    """This process and the system and GPUs that it sees.

    Args:
        warnings: Receives a warning if the GPUs cannot be described.
        on_device: Whether it uses GPUs.
    """
    described: Description = {**nothing_known(), "system": _system(), "process": _process()}
    if on_device:
        # After a kernel failed, the driver answers no more questions.
        attempt(lambda: _describe_gpus(described), _NO_GPUS, warnings)
    return described


def _describe_gpus(described: Description) -> None:
    rows = gpus()
    described["gpu_identities"] = [str(torch.cuda.get_device_properties(row["id"]).uuid) for row in rows]
    described["gpus"] = rows


def gpus() -> list[Row]:
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
    """The system's properties; nothing that identifies a person or a place."""
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


def _pairs(values: dict[str, str]) -> list[Row]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _labels(labels: dict[int, str]) -> list[Row]:
    return [{"id": number, "name": label, "label": label} for number, label in labels.items()]
