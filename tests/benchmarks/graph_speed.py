"""How fast ``tracekit parse`` maps replayed CUDA graphs to modules, beside SQLite summing the same columns.

``python -m tests.benchmarks.graph_speed [--kernels 1000000] [--captures 67] [--runs 3] [--scaling]``. Measured as
:mod:`tests.benchmarks.parse_speed` does: every figure is of a process of its own, the scan in turn with the parse.
That every kernel found its module, as a check that the work was done, ends the run with an error if not so.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import pyarrow.compute as pc

import tracekit
from tests.benchmarks.graph_report import CAPTURES, write_graph_report
from tests.benchmarks.parse_speed import SCANS, parse_figures, scan_seconds

GRAPH_SCANS = SCANS | {
    "CUDA_GRAPH_EVENTS": "start eventClass globalTid graphNodeId originalGraphNodeId",
    "StringIds": "id LENGTH(value)",
}


def measure(kernels: int, captures: int, runs: int, folder: Path) -> None:
    """Prints one line of figures for a report of that size."""
    report = write_graph_report(folder / "report.sqlite", kernels=kernels, captures=captures)
    out = folder / "report.tracekit"
    scan_seconds(report, GRAPH_SCANS)
    scans, parses = [], []
    for _ in range(runs):
        scans.append(scan_seconds(report, GRAPH_SCANS))
        parses.append(parse_figures([report], out))
    ratio = statistics.median(run.wall / scan for run, scan in zip(parses, scans, strict=True))
    dataset = tracekit.load(out)
    print(
        f"{dataset.manifest['rows']['kernels']:>9,} kernels of {captures:3} captures, "
        f"{report.stat().st_size / 1e6:4.0f} MB: scan {statistics.median(scans):5.2f} s, "
        f"parse {statistics.median(run.wall for run in parses):5.2f} s = {ratio:4.1f} scans "
        f"({statistics.median(run.cpu for run in parses):.2f} s of all cores), "
        f"peak {max(run.megabytes for run in parses):4.0f} MB",
        flush=True,
    )
    modules = dataset.table("kernels", ["module_id"]).column("module_id")
    if pc.sum(modules.is_null()).as_py():
        sys.exit("some kernels have no module")
    report.unlink()
    shutil.rmtree(out)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--captures", type=int, default=CAPTURES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scaling", action="store_true", help="also more replays, more captures")
    args = parser.parse_args()
    sizes = [(args.kernels, args.captures)]
    if args.scaling:
        sizes += [(args.kernels // 4, args.captures), (args.kernels * 4, args.captures)]
        sizes += [(args.kernels, args.captures * 4), (args.kernels, args.captures * 16)]
    with tempfile.TemporaryDirectory() as folder:
        for kernels, captures in sizes:
            measure(kernels, captures, args.runs, Path(folder))


if __name__ == "__main__":
    main()
