"""The end of a recording: its report with the machine it was made on, messages, progress, and what stops it."""

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from tracekit.capture.kineto import (
    MEMORY_LABELS,
    ProcessTrace,
    Row,
    Rows,
    global_tid,
    keep_chrome_trace,
    rows_of_processes,
)
from tracekit.capture.schedule import attempt
from tracekit.errors import CaptureError
from tracekit.progress import Progress
from tracekit.recording.values import COPY_KINDS
from tracekit.version import __version__

#: Exit code of what Ctrl-C stopped.
INTERRUPTED = 130
STOPPED = "stopped while writing; no report was written, and no unfinished files are left"
#: The figure that counts the markers opened in a process's window.
OPENED = "markers_opened"
#: Reports follow the export schema of Nsight Systems 2023.4.4.
_EXPORTER = {
    "EXPORT_PRODUCT_NAME": "tracekit",
    "EXPORT_PRODUCT_VERSION": f"tracekit {__version__}",
    "EXPORT_SCHEMA_VERSION": "3.7.2",
    "EXPORT_SCHEMA_VERSION_MAJOR": "3",
    "EXPORT_SCHEMA_VERSION_MINOR": "7",
    "EXPORT_SCHEMA_VERSION_MICRO": "2",
}


def say(line: str) -> None:
    """Prints a line on stderr, unless the program has closed it."""
    with suppress(OSError, ValueError):
        print(f"tracekit: {line}", file=sys.stderr, flush=True)  # noqa: T201


def say_stopped(what: str = "writing what was recorded (Ctrl-C again: drop it)") -> None:
    """Tells who pressed Ctrl-C why the program has not ended yet."""
    say(f"stopped; {what}")


def machine_tables(rows: Rows, processes: Sequence[Row]) -> dict[str, list[Row]]:
    """Everything in a report that is not an event, by name of table, given the recorded processes as described."""
    tables = {
        "META_DATA_EXPORT": named(_EXPORTER),
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


def describe_process(warnings: list[str]) -> Row:
    """This process, its system, and the GPUs if it uses any, as JSON: ``process``, ``system`` and ``gpus``."""
    gpus: list[Row] = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # After a kernel failed, the driver answers no more questions.
        attempt(lambda: gpus.extend(gpus_of_torch()), "the report does not describe the GPUs", warnings)
    system = {
        "CpuArchitecture": platform.machine(),
        "CpuCores": str(os.cpu_count()),
        "OsVersion": platform.system(),
        "PythonVersion": platform.python_version(),
        "TorchVersion": str(torch.__version__),
        "CudaVersion": str(torch.version.cuda or "none"),
    }
    return {"process": _process(), "system": system, "gpus": gpus}


def gpus_of_torch() -> list[Row]:
    """The GPUs that torch sees."""
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "id": index,
            "uuid": str(gpu.uuid),
            "name": gpu.name,
            "smCount": gpu.multi_processor_count,
            "totalMemory": gpu.total_memory,
            "computeMajor": gpu.major,
            "computeMinor": gpu.minor,
        }
        for index, gpu in enumerate(devices)
    ]


def built_for_cuda() -> bool:
    """Whether this build of torch supports NVIDIA GPUs."""
    return torch.version.cuda is not None


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


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes what processes recorded as one report, and reports how far it is."""

    progress: Progress
    ops: bool
    chrome_trace: Path | None

    def report(
        self,
        report: Path,
        traces: Sequence[ProcessTrace],
        about: Sequence[Row],
        figures: Mapping[str, int],
        warnings: list[str],
    ) -> dict[str, int]:
        """Writes the traces of processes, and what recording them cost; returns these figures with those of all rows.

        ``about`` is the process of each trace. ``warnings`` receives what went wrong without harming the report.
        """
        from tracekit.nsight import file as nsight_file  # noqa: PLC0415 - imports SQLAlchemy, which markers do not need

        size = sum(trace.path.stat().st_size for trace in traces)
        before = time.perf_counter_ns()
        reading = self._stage(f"reading {size / 1e6:,.0f} MB of events", size)
        rows = rows_of_processes(traces, ops=self.ops, progress=reading)
        if self.chrome_trace is not None:
            rewriting = self._stage("writing the Chrome trace", size)
            keep_chrome_trace(traces, rows, self.chrome_trace, warnings, rewriting)
        known = dict(figures) | {"markers": rows.numbered, "operators": len(rows.operators)}
        known["markers_lost"] = max(0, known.pop(OPENED) - rows.numbered)
        known["convert_ns"] = time.perf_counter_ns() - before
        tables = rows.tables() | machine_tables(rows, about) | {"TRACEKIT_RECORDER": named(known)}
        nsight_file.write(report, tables, self._stage("writing the report", 1))
        return known

    def _stage(self, name: str, total: float) -> Callable[[float], None]:
        done = 0.0

        def advance(more: float) -> None:
            nonlocal done
            done += more
            self.progress(name, min(1.0, done / total))

        advance(0)
        return advance


@contextmanager
def writing(progress: Progress, *, ops: bool, chrome_trace: Path | None) -> Iterator[Writing]:
    """Writing that a signal stops. No garbage is collected meanwhile: half of the time would go into looking for it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield Writing(progress, ops, chrome_trace)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = getattr(stop, "code", INTERRUPTED)
        raise CaptureError(STOPPED, code if isinstance(code, int) else 1) from None
    finally:
        if collecting:
            gc.enable()
