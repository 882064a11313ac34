"""How fast and how large ``tracekit parse`` is, beside what SQLite takes merely to sum the same columns.

``python -m tests.benchmarks.parse_speed [--kernels 1000000] [--runs 3] [--scaling] [--captures 67]``. Every figure
is of a process of its own; the scan takes turns with it. With ``--captures`` all kernels are replayed from CUDA graphs.
With ``--processes`` each of so many has as many kernels; then memory is that of all processes of the command together.
"""

import argparse
import os
import resource
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import tracekit
from tests.benchmarks.graph_report import write_graph_report
from tests.benchmarks.measuring import (
    GRAPH_SCANS,
    SCANS,
    Figures,
    benchmark,
    compare,
    figures_of_all,
    in_turn,
    parse_figures,
    scan_figures,
    tell,
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


def measure_report(report: Path, what: str, scanned: dict[str, str] = SCANS, *, runs: int) -> None:
    out = report.with_suffix(".tracekit")
    scan_figures(report, scanned)
    forms = {"SQLite's sums": partial(scan_figures, report, scanned), "parse": partial(parse_figures, [report], out)}
    compare(runs, forms, "SQLite's sums")
    print(f"{what}, {report.stat().st_size / 1e6:.0f} MB, subtree of a layer {1000 * subtree_seconds(out):.1f} ms")
    shutil.rmtree(out)


def figures_on(cores: list[int], report: Path) -> Figures:
    parse = f"import os, runpy; os.sched_setaffinity(0, {cores}); runpy.run_module('tracekit', None, '__main__')"
    out = report.with_suffix(".tracekit")
    return figures_of_all([sys.executable, "-c", parse, "parse", report, "-o", out, "--force", "--quiet"])


def measure_processes(report: Path, processes: int, *, runs: int) -> None:
    forms = {
        "SQLite's sums": partial(scan_figures, report),
        "one core": partial(figures_on, [0], report),
        "all cores": partial(figures_on, [*range(os.cpu_count() or 1)], report),
    }
    print(f"{processes} processes, {report.stat().st_size / 1e6:.0f} MB, peak of all processes")
    compare(runs, forms, "SQLite's sums")


def measure_folders(report: Path, *, runs: int, folder: Path) -> None:
    out = folder / "folder.tracekit"
    for suffix in SUFFIXES:
        tables = as_folder(report, folder / f"tables{suffix}", suffix)
        forms = {"folder": partial(parse_figures, [tables], out), "SQLite": partial(parse_figures, [report], out)}
        found = in_turn(runs, forms)
        size = sum(file.stat().st_size for file in tables.iterdir()) / 1e6
        tell(f"as {suffix}, {size:.0f} MB", found["folder"], found["SQLite"])
        shutil.rmtree(tables)


def measure(args: argparse.Namespace, folder: Path) -> None:
    place = folder / "report.sqlite"
    if args.processes:
        report = multiply(write_report(place, kernels=args.kernels), args.processes)
        measure_processes(report, args.processes, runs=args.runs)
        return
    for kernels in [100_000, 300_000, args.kernels, 3_000_000, 5_000_000] if args.scaling else [args.kernels]:
        place.unlink(missing_ok=True)
        if args.captures:
            report = write_graph_report(place, kernels=kernels, captures=args.captures)
            measure_report(report, f"{kernels:,} kernels of {args.captures} captures", GRAPH_SCANS, runs=args.runs)
        else:
            report = write_report(place, kernels=kernels)
            measure_report(report, f"{kernels:,} kernels, registered text", runs=args.runs)
            measure_folders(report, runs=args.runs, folder=folder)
    if not args.captures:
        place.unlink()
        report = write_report(place, kernels=args.kernels, inline_text=True)
        measure_report(report, f"{args.kernels:,} kernels, inline text", runs=args.runs)
    print(f"benchmark itself: peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    more = {"--scaling": {"action": "store_true", "help": "also 0.1, 0.3, 3 and 5 million kernels"}}
    benchmark(__doc__, measure, more, kernels=1_000_000, runs=3, captures=0, processes=0)
