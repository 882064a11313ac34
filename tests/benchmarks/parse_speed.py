"""How fast and how large ``tracekit parse`` is, beside what SQLite takes merely to sum the same columns.

``python -m tests.benchmarks.parse_speed [--kernels 1000000] [--runs 3] [--scaling] [--captures 67]``. Every figure
is of a process of its own; the scan is measured in the same run, in turn with the parse, so that a noisy machine slows
both. With ``--captures`` all kernels are replayed from CUDA graphs. With ``--processes`` each of so many has as many
kernels; then memory is that of all processes of the command together.
"""

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import tracekit
from tests.benchmarks.graph_report import write_graph_report
from tests.benchmarks.measuring import (
    GRAPH_SCANS,
    SCANS,
    Figures,
    figures_of_all,
    options,
    parse_figures,
    ratio,
    scan_seconds,
)
from tests.benchmarks.serving_report import multiply, write_report
from tests.readers.folders import SUFFIXES, as_folder


def subtree_seconds(out: Path) -> float:
    dataset = tracekit.load(out)
    paths = dataset.table("modules", ["path"]).column("path").to_pylist()
    layer = next(path for path in paths if path.endswith("layers.3"))
    dataset.subtree(layer).table("kernels")
    begin = time.perf_counter()
    dataset.subtree(layer).table("kernels")
    return time.perf_counter() - begin


def measure(report: Path, what: str, scanned: dict[str, str] = SCANS, *, runs: int) -> None:
    """Prints one line of figures for a report."""
    out = report.with_suffix(".tracekit")
    scan_seconds(report, scanned)
    scans, parses = [], []
    for _ in range(runs):
        scans.append(scan_seconds(report, scanned))
        parses.append(parse_figures([report], out))
    middle = Figures.middle(parses)
    print(
        f"{what}, {report.stat().st_size / 1e6:6.0f} MB: scan {statistics.median(scans):6.2f} s, "
        f"parse {middle.wall:6.2f} s = {ratio((run.wall for run in parses), scans):4.1f} scans "
        f"({middle.cpu:.2f} s of all cores = {ratio((run.cpu for run in parses), scans):.1f} scans), "
        f"peak {max(run.megabytes for run in parses):5.0f} MB, "
        f"subtree of a layer {1000 * subtree_seconds(out):5.1f} ms",
        flush=True,
    )
    shutil.rmtree(out)


def measure_processes(report: Path, processes: int, *, runs: int) -> None:
    """Prints a line for one core and one for all, in turn."""
    scans = []
    cores = {"one core": [0], "all cores": [*range(os.cpu_count() or 1)]}
    found: dict[str, list[Figures]] = {name: [] for name in cores}
    for _ in range(runs):
        scans.append(scan_seconds(report))
        for name, chosen in cores.items():
            parse = (
                f"import os, runpy; os.sched_setaffinity(0, {chosen}); runpy.run_module('tracekit', None, '__main__')"
            )
            command = [sys.executable, "-c", parse, "parse", report, "-o", report.with_suffix(".tracekit"), "--force"]
            found[name].append(figures_of_all([*command, "--quiet"]))
    for name, figures in found.items():
        wall, cpu, megabytes = Figures.middle(figures)
        print(
            f"{processes} processes, {report.stat().st_size / 1e6:.0f} MB, {name}: {wall:.2f} s, {cpu:.2f} s of CPU = "
            f"{cpu / statistics.median(scans):.1f} scans, peak of all processes {megabytes:.0f} MB",
            flush=True,
        )


def removed(report: Path) -> Path:
    report.unlink(missing_ok=True)
    return report


def measure_folders(report: Path, *, runs: int, folder: Path) -> None:
    out = folder / "folder.tracekit"
    for suffix in SUFFIXES:
        tables = as_folder(report, folder / f"tables{suffix}", suffix)
        pairs = [(parse_figures([tables], out), parse_figures([report], out)) for _ in range(runs)]
        of_sqlite = ratio((run.wall for run, _ in pairs), (run.wall for _, run in pairs))
        print(
            f"{'':>9}  the same as a folder of {suffix:<8} files, "
            f"{sum(file.stat().st_size for file in tables.iterdir()) / 1e6:6.0f} MB: "
            f"parse {statistics.median(run.wall for run, _ in pairs):6.2f} s = {of_sqlite:4.2f} of SQLite, "
            f"peak {max(run.megabytes for run, _ in pairs):5.0f} MB",
            flush=True,
        )
        shutil.rmtree(tables)


def main() -> None:
    """Runs the benchmark."""
    parser = options(__doc__, kernels=1_000_000, runs=3)
    parser.add_argument("--scaling", action="store_true", help="also 0.1, 0.3, 3 and 5 million kernels")
    parser.add_argument("--captures", type=int, default=0, help="all kernels are replayed, from so many graph captures")
    parser.add_argument("--processes", type=int, default=0, help="so many processes, each with as many kernels")
    args = parser.parse_args()
    sizes = [100_000, 300_000, args.kernels, 3_000_000, 5_000_000] if args.scaling else [args.kernels]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.sqlite"
        if args.processes:
            report = multiply(write_report(place, kernels=args.kernels), args.processes)
            measure_processes(report, args.processes, runs=args.runs)
            return
        for kernels in sizes:
            if args.captures:
                report = write_graph_report(removed(place), kernels=kernels, captures=args.captures)
                measure(report, f"{kernels:>9,} kernels of {args.captures} captures", GRAPH_SCANS, runs=args.runs)
                continue
            report = write_report(removed(place), kernels=kernels)
            measure(report, f"{kernels:>9,} kernels, registered text", runs=args.runs)
            measure_folders(report, runs=args.runs, folder=Path(folder))
        if not args.captures:
            report = write_report(removed(place), kernels=args.kernels, inline_text=True)
            measure(report, f"{args.kernels:>9,} kernels, inline text", runs=args.runs)
    print(f"benchmark itself: peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
