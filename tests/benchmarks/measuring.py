"""What benchmarks share: their runner, the figures of a command in a process of its own, and the floor of a report."""

import argparse
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

T = TypeVar("T")
SCANS = {
    "NVTX_EVENTS": "start end eventType globalTid endGlobalTid textId LENGTH(text) domainId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId streamId correlationId globalPid demangledName "
    "shortName registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory "
    "graphNodeId",
}
GRAPH_SCANS = SCANS | {
    "CUDA_GRAPH_EVENTS": "start eventClass globalTid graphNodeId originalGraphNodeId",
    "StringIds": "id LENGTH(value)",
}


def benchmark(
    description: str | None,
    measure: Callable[[argparse.Namespace, Path], object],
    more: Mapping[str, dict[str, Any]] | None = None,
    **numbers: float,
) -> None:
    """Runs a benchmark in a temporary folder, with an option for each number and more arguments of argparse."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    for name, argument in (more or {}).items():
        parser.add_argument(name, **argument)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args, Path(folder))


def in_turn(runs: int, forms: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """What all forms give, measured one after the other and again, so that a busy machine slows all."""
    rounds = [[form() for form in forms.values()] for _ in range(runs)]
    return {name: [one[at] for one in rounds] for at, name in enumerate(forms)}


class Figures(NamedTuple):
    """What a command and all that it started took: seconds, seconds of CPU, and memory at its highest."""

    wall: float
    cpu: float
    megabytes: float


def tell(name: str, runs: Sequence[Figures], floor: Sequence[Figures] | None = None) -> None:
    """Prints the medians of some runs, and what they take of a floor that took turns with them."""
    wall, cpu, _ = (statistics.median(column) for column in zip(*runs, strict=True))
    text = f"{name:24} {wall:7.2f} s, {cpu:7.2f} s of CPU, peak {max(run.megabytes for run in runs):6.0f} MB"
    if floor:
        of_wall = ratio((run.wall for run in runs), (run.wall for run in floor))
        of_cpu = ratio((run.cpu for run in runs), (run.cpu for run in floor))
        text += f"; {of_wall:.2f} of the floor's time, {of_cpu:.2f} of its CPU time"
    print(text, flush=True)


def compare(runs: int, forms: Mapping[str, Callable[[], Figures]], floor: str) -> dict[str, list[Figures]]:
    """Measures all forms in turn, and tells each beside that which is the floor."""
    found = in_turn(runs, forms)
    for name, figures in found.items():
        tell(name, figures, found[floor])
    return found


def ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """The median of the ratios of runs that took turns."""
    return statistics.median(one / other for one, other in zip(numerators, denominators, strict=True))


def figures_of(command: Sequence[str | Path]) -> Figures:
    """Memory is that of the largest process."""
    watched = (
        "import resource, subprocess, sys, time; begin = time.perf_counter(); "
        "code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024); sys.exit(code)"
    )
    # As installed: where Python keeps no bytecode, every start would compile tracekit's sources anew.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", watched, *command], check=True, capture_output=True, text=True, env=kept
    )
    return Figures(*map(float, done.stdout.split()))


def figures_of_all(command: Sequence[str | Path]) -> Figures:
    """Memory is that of all processes together, pages that they share counted once; looked at five times a second."""
    used = sum(psutil.Process().cpu_times()[2:4])
    begin = time.perf_counter()
    running = psutil.Popen(command, stdout=subprocess.DEVNULL)
    peak = [0]
    watch = threading.Thread(target=_watch_memory, args=(running, peak))
    watch.start()
    code = running.wait()
    watch.join()
    if code:
        raise SystemExit(code)
    return Figures(time.perf_counter() - begin, sum(psutil.Process().cpu_times()[2:4]) - used, peak[0] / 1e6)


def _watch_memory(running: psutil.Process, peak: list[int]) -> None:
    with suppress(psutil.NoSuchProcess):
        while running.status() != psutil.STATUS_ZOMBIE:
            peak[0] = max(peak[0], sum(map(_memory_of, (running, *running.children(recursive=True)))))
            time.sleep(0.2)


def _memory_of(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def tracekit_command(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "tracekit", *words]


def parse_figures(reports: Sequence[Path], out: Path, *options: str) -> Figures:
    shutil.rmtree(out, ignore_errors=True)
    return figures_of(tracekit_command("parse", *reports, "-o", out, "--quiet", *options))


def scan_figures(report: Path, scans: dict[str, str] = SCANS) -> Figures:
    """What SQLite takes merely to sum the columns that a parse reads, in this process."""
    with sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True) as db:
        begin = time.perf_counter()
        for table, columns in scans.items():
            sums = ", ".join(f"TOTAL({column})" for column in columns.split())
            db.execute(f"SELECT {sums} FROM {table}").fetchall()  # noqa: S608
        seconds = time.perf_counter() - begin
    return Figures(seconds, seconds, 0)
