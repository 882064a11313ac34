"""Parses reports side by side, each in its own process; no process outlives the call.

A worker is a fresh interpreter that runs :mod:`tracekit.pipeline.worker`: the main program is not imported again, and
no thread is forked. It reads its task as one line of JSON and answers in such lines. There are at most as many workers
as cores, and as fit into the memory that is available when the first one starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracekit.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from tracekit.pipeline.one import Wishes
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location

#: Parsing 185 MB took 0.8 GB at its peak, 963 MB took 3.2 GB.
_BASE_BYTES, _BYTES_PER_BYTE = 200_000_000, 4
#: How much larger a report would be as SQLite, if it is stored more densely. Of a Chrome trace, 49 MB as .gz, 525 MB
#: unpacked, took 1.0 GB; others are packed twice as densely.
_DENSITY = {".nsys-rep": 10, ".qdrep": 14, ".qdstrm": 10, ".parquet": 4, ".gz": 8}
#: How long workers may take to remove what they have begun, when they are stopped.
_PATIENCE_S = 5
_MEMORY = Path("/proc/meminfo")
#: A container's limit and use of memory, in either version of Linux's control groups.
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
_AVAILABLE = re.compile(r"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)
#: The part of a report's progress that each stage covers.
_STAGES = {"bringing": (0.0, 0.2), "exporting": (0.0, 0.3), "reading": (0.0, 0.5), "writing": (0.5, 1.0)}
_BOOT = (
    "import json, sys; task = json.loads(sys.stdin.readline()); sys.path[:] = task['path']; "
    "from tracekit.pipeline.worker import run; run(task)"
)


@dataclass(frozen=True, slots=True)
class Task:
    """One report to be parsed.

    Attributes:
        report: Its file.
        name: Its name in progress.
        folder: Where its tables go; created by the worker.
        wishes: What is asked of its dataset.
    """

    report: Location
    name: str
    folder: Path
    wishes: Wishes


def parsed_side_by_side(tasks: Sequence[Task], progress: Progress) -> list[ReportError | None]:
    """Parses reports into folders.

    Args:
        tasks: The reports.
        progress: Called with the name of each report and the share of it that is done.

    Returns:
        For every report why it could not be read, or None.

    Raises:
        OSError: If a folder cannot be written.
    """
    waiting = deque(enumerate(tasks))
    running: dict[Future[ReportError | None], int] = {}
    needed = [_needed_bytes(task.report) for task in tasks]
    errors: list[ReportError | None] = [None] * len(tasks)
    available = _available_bytes()
    # Leaving the block first ends the processes, then waits for the threads that listen to them.
    with ThreadPoolExecutor(max_workers=_cores()) as pool, _Processes() as processes:
        while waiting or running:
            while waiting and _fits(needed, [*running.values()], waiting[0][0], available):
                number, task = waiting.popleft()
                running[pool.submit(_parsed, task, processes, progress)] = number
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                errors[running.pop(future)] = future.result()
    return errors


def _fits(needed: list[int], running: list[int], more: int, available: int | None) -> bool:
    """Whether another report can start; one always can."""
    if not running:
        return True
    together = needed[more] + sum(needed[number] for number in running)
    return len(running) < _cores() and (available is None or together <= available)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _needed_bytes(report: Location) -> int:
    """Estimate of the memory that parsing a report takes."""
    try:
        files = [report, *report.iterdir()] if report.is_dir() else [report]
        return _BASE_BYTES + _BYTES_PER_BYTE * sum(file.stat().st_size * _DENSITY.get(file.suffix, 1) for file in files)
    except OSError:
        return 0  # its worker will report the error


def _available_bytes() -> int | None:
    """Memory that is available without swapping; None if the system does not tell."""
    free = [int(kilobytes) * 1024 for kilobytes in _AVAILABLE.findall(_system_file(_MEMORY))]
    for limit, used in ((_system_file(limit_path), _system_file(used_path)) for limit_path, used_path in _LIMITS):
        if limit.isdigit() and used.isdigit():
            free.append(max(0, int(limit) - int(used)))
    return min(free, default=None)


def _system_file(path: Path) -> str:
    """The text of a file of the system; empty if there is none."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeError):
        return ""


class _Processes:
    """The running workers. At the end of the block all are stopped, and no more can start."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._stopped = False

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the workers that still run, and kills those that do not end soon."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()
            deadline = time.monotonic() + _PATIENCE_S
            for process in self._running:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def start(self) -> subprocess.Popen[bytes] | None:
        """A fresh interpreter that waits for its task; None after the end of the block."""
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Ctrl-C in a terminal reaches only this process, which then ends its workers.
                start_new_session=True,
            )
            self._running.append(process)
            return process

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for a worker to end; returns its exit code."""
        code = process.wait()
        with self._lock:
            self._running.remove(process)
        return code


def _parsed(task: Task, processes: _Processes, progress: Progress) -> ReportError | None:
    """Lets a worker parse one report, and passes on its progress."""
    process = processes.start()
    if process is None or process.stdin is None or process.stdout is None:
        return None
    message: dict[str, Any] = {}
    # The worker ends when its input does, so the input stays open while it works.
    with process.stdin, process.stdout:
        with suppress(BrokenPipeError):
            os.write(process.stdin.fileno(), _line(task))
        done = 0.0
        for line in process.stdout:
            message = json.loads(line)
            if message.get("stage") in _STAGES:
                begin, end = _STAGES[message["stage"]]
                done = max(done, begin + (end - begin) * message["share"])
                progress(task.name, done)
    return _outcome(task.report, message, processes.ended(process))


def _line(task: Task) -> bytes:
    """The task as a worker reads it."""
    fields = {
        "path": [*map(str, sys.path)],  # some programs add paths
        "report": str(task.report),
        "folder": str(task.folder),
        "wishes": {**asdict(task.wishes), "graph_captures": [*map(str, task.wishes.graph_captures)]},
    }
    return f"{json.dumps(fields)}\n".encode()


def _outcome(report: Location, message: dict[str, Any], code: int) -> ReportError | None:
    """Why a report could not be read, by the last message of its worker; None if it was read."""
    if "problem" in message:
        return ReportError(report, message["problem"], message["remedy"])
    if "errno" in message:
        raise OSError(message["errno"], message["strerror"])
    if code or not message.get("done"):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        remedy = "parse it alone, and free memory if it ran out of memory"
        return ReportError(report, f"the process that parsed it ended early ({how})", remedy)
    return None
