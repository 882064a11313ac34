"""What many small reports in one dataset cost each, beside what SQLite takes merely to add up their columns.

``python -m tests.benchmarks.many_reports [--reports 2000] [--kernels 2000] [--apart 20] [--nsys NSYS]``. The floor is
one process that scans report after report; it is measured in the same run, before and after. ``--apart`` says how many
are also parsed by a command each, as before processes lived on; with ``--nsys``, NVIDIA's ``nsys stats`` sums their
kernels by range, too, which is one of the questions that the tables answer. Peak memory is of all processes together,
pages that they share counted once.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.benchmarks.parse_speed import parse_figures, scan_seconds
from tests.benchmarks.peers import nsys_stats
from tests.benchmarks.serving_report import write_report


class Figures(NamedTuple):
    """What a command and all that it started took."""

    wall: float
    cpu: float
    megabytes: float


def figures_of(command: list[str | Path]) -> Figures:
    used = sum(psutil.Process().cpu_times()[2:4])
    begin = time.perf_counter()
    running = psutil.Popen(command, stdout=subprocess.DEVNULL)
    peak: list[int] = [0]
    watch = threading.Thread(target=watch_memory, args=(running, peak))
    watch.start()
    code = running.wait()
    watch.join()
    if code:
        raise SystemExit(code)
    return Figures(time.perf_counter() - begin, sum(psutil.Process().cpu_times()[2:4]) - used, peak[0] / 1e6)


def watch_memory(running: psutil.Process, peak: list[int]) -> None:
    with suppress(psutil.NoSuchProcess):
        while running.status() != psutil.STATUS_ZOMBIE:
            peak[0] = max(peak[0], sum(map(memory_of, (running, *running.children(recursive=True)))))
            time.sleep(0.2)


def memory_of(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=2000)
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--apart", type=int, default=20)
    parser.add_argument("--nsys", type=Path, help="NVIDIA's nsys, for nsys stats")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = write_report(folder / "rank0.sqlite", kernels=args.kernels)
        paths = [first, *(Path(shutil.copy(first, folder / f"rank{at}.sqlite")) for at in range(1, args.reports))]
        floor = sum(map(scan_seconds, paths))
        command = [sys.executable, "-m", "tracekit", "parse", *paths, "--force", "-o", folder / "run"]
        together, summary = figures_of([*command, "--quiet"]), figures_of(command)
        floor = (floor + sum(map(scan_seconds, paths))) / 2
        apart = [parse_figures([path], folder / "one") for path in paths[: args.apart]]
        summed = [figures_of(nsys_stats(args.nsys, path)) for path in paths[: args.apart] if args.nsys]
    each = 1000 / args.reports
    alone = [1000 * statistics.mean(figures) for figures in zip(*apart, strict=True)]
    print(
        f"{args.reports:,} reports of {args.kernels:,} kernels: {together.wall:.1f} s, "
        f"{each * together.wall:.0f} ms each ({each * together.cpu:.0f} ms of CPU; {together.wall / floor:.1f} times "
        f"SQLite's sums, {each * floor:.1f} ms), peak of all processes {together.megabytes:.0f} MB; "
        f"with its summary {summary.cpu / together.cpu:.2f} of the CPU time, {summary.megabytes:.0f} MB; "
        f"a command for each takes {alone[0]:.0f} ms ({alone[1]:.0f} ms of CPU)"
    )
    if summed:
        wall, cpu = (1000 * statistics.mean(figures) for figures in list(zip(*summed, strict=True))[:2])
        print(f"nsys stats takes {wall:.0f} ms ({cpu:.0f} ms of CPU) for each")


if __name__ == "__main__":
    main()
