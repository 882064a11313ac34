"""Reports parsed side by side, each in a process of its own; none of these outlives the call.

A worker is a fresh interpreter that runs :mod:`tracekit.pipeline.worker`: nobody's main program is imported again, and
no thread is forked. It reads its task as one line of JSON and answers in such lines. As many run as there are cores,
and as fit into the memory that is available when the first one starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracekit.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from tracekit.progress import Progress

#: Parsing 185 MB took 0.8 GB at its peak, 963 MB took 3.2 GB.
_BASE_BYTES, _BYTES_PER_BYTE = 200_000_000, 4
_MEMORY = Path("/proc/meminfo")
#: What a container may use, and what it uses, by either version of Linux's control groups.
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
_AVAILABLE = re.compile(r"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)
#: Which part of a report's work each stage is.
_STAGES = {"reading": (0.0, 0.5), "writing": (0.5, 1.0)}
_BOOT = (
    "import json, sys; task = json.loads(sys.stdin.readline()); sys.path[:] = task['path']; "
    "from tracekit.pipeline.worker import run; run(task)"
)


@dataclass(frozen=True, slots=True)
class Task:
    """One report to be parsed.

    Attributes:
        report: Its file.
        name: What it is called while it is parsed.
        folder: Where its tables go; made by the worker.
        first_id: The number from which rows are counted.
    """

    report: Path
    name: str
    folder: Path
    first_id: int


def parsed_side_by_side(tasks: Sequence[Task], progress: Progress) -> list[ReportError | None]:
    """Parses reports into folders.

    Args:
        tasks: The reports.
        progress: Told how far each one is, by its name.

    Returns:
        For every report why it could not be read, or None.

    Raises:
        OSError: If a folder cannot be written.
    """
    waiting = deque(enumerate(tasks))
    running: dict[Future[ReportError | None], int] = {}
    needed = [_needed_bytes(task.report) for task in tasks]
    failed: list[ReportError | None] = [None] * len(tasks)
    available = _available_bytes()
    # Leaving the block ends the processes first, and then waits for the threads that listen to them.
    with ThreadPoolExecutor(max_workers=_cores()) as pool, _Processes() as processes:
        while waiting or running:
            while waiting and _fits(needed, [*running.values()], waiting[0][0], available):
                number, task = waiting.popleft()
                running[pool.submit(_parsed, task, processes, progress)] = number
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                failed[running.pop(future)] = future.result()
    return failed


def _fits(needed: list[int], running: list[int], more: int, available: int | None) -> bool:
    """Whether another report can be begun; one always can."""
    if not running:
        return True
    together = needed[more] + sum(needed[number] for number in running)
    return len(running) < _cores() and (available is None or together <= available)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _needed_bytes(report: Path) -> int:
    """About how much memory parsing a report takes."""
    try:
        return _BASE_BYTES + _BYTES_PER_BYTE * report.stat().st_size
    except OSError:
        return 0  # its worker will say what is wrong


def _available_bytes() -> int | None:
    """How much memory can be had without swapping, where the system says so."""
    free = [int(found) * 1024 for found in _AVAILABLE.findall(_said(_MEMORY))]
    for limit, used in ((_said(most), _said(now)) for most, now in _LIMITS):
        if limit.isdigit() and used.isdigit():
            free.append(max(0, int(limit) - int(used)))
    return min(free, default=None)


def _said(path: Path) -> str:
    """What a file of the system's says; nothing if there is none."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeError):
        return ""


class _Processes:
    """The workers that run; at the end of the block none does, and none can be started."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._stopped = False

    def __enter__(self) -> Self:
        """The workers."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends those that still run."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()
                process.wait()

    def start(self) -> subprocess.Popen[bytes] | None:
        """A fresh interpreter that waits for its task; None if it is too late."""
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Ctrl-C in a terminal is for this process alone, which then ends its workers.
                start_new_session=True,
            )
            self._running.append(process)
            return process

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for the end of a worker; returns its exit code."""
        code = process.wait()
        with self._lock:
            self._running.remove(process)
        return code


def _parsed(task: Task, processes: _Processes, progress: Progress) -> ReportError | None:
    """Lets a worker parse one report, and passes on what it says."""
    process = processes.start()
    if process is None or process.stdin is None or process.stdout is None:
        return None
    said: dict[str, Any] = {}
    # Its input stays open while it works: when that ends, so does it.
    with process.stdin, process.stdout:
        with suppress(BrokenPipeError):
            os.write(process.stdin.fileno(), _line(task))
        for line in process.stdout:
            said = json.loads(line)
            if said.get("stage") in _STAGES:
                begin, end = _STAGES[said["stage"]]
                progress(task.name, begin + (end - begin) * said["share"])
    return _outcome(task.report, said, processes.ended(process))


def _line(task: Task) -> bytes:
    """The task as a worker reads it."""
    said = {
        "path": [*map(str, sys.path)],  # some put paths there
        "report": str(task.report),
        "folder": str(task.folder),
        "first_id": task.first_id,
    }
    return f"{json.dumps(said)}\n".encode()


def _outcome(report: Path, said: dict[str, Any], code: int) -> ReportError | None:
    """What came of a worker, by the last line that it said."""
    if "problem" in said:
        return ReportError(report, said["problem"], said["remedy"])
    if "errno" in said:
        raise OSError(said["errno"], said["strerror"])
    if code or not said.get("done"):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        remedy = "parse it alone; if its process was killed for want of memory, free some"
        return ReportError(report, f"the process that parsed it ended early ({how})", remedy)
    return None
