"""What ``tracekit parse --like`` costs beside the same parse without it, in CPU time and memory.

``python -m tests.benchmarks.like_speed [--kernels 1000000] [--runs 3]``. The marked run is a twentieth of the report
like a serving engine's; in production nothing is marked, grids are those of other batches, and in every tenth step a
kernel is missing, so that its sequences are compared, not only looked up. Each run is a process of its own; the two
take turns.
"""

import argparse
import sqlite3
import statistics
import tempfile
from contextlib import closing
from pathlib import Path

import tracekit
from tests.benchmarks.parse_speed import parse_figures
from tests.benchmarks.serving_report import write_report


def unmarked(path: Path) -> Path:
    """Drops the markers, changes the grids of steps in turns, and leaves a kernel out now and then."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM NVTX_EVENTS")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = gridX * (2 + correlationId / 4000 % 5)")
        db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId % 4177 = 0")
        db.commit()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        marked = tracekit.parse(write_report(Path(place) / "marked.sqlite", kernels=args.kernels // 20)).folder
        report, out = unmarked(write_report(Path(place) / "report.sqlite", kernels=args.kernels)), Path(place) / "out"
        plain, like = [], []
        for _ in range(args.runs):
            plain.append(parse_figures([report], out))
            like.append(parse_figures([report], out, "--like", str(marked)))
        told = tracekit.load(out).table("kernels", ["module"]).column("module")
        for name, runs in (("without --like", plain), ("with --like", like)):
            cpu = statistics.median(run.cpu for run in runs)
            print(f"{name:<15} {cpu:6.2f} s of CPU, {max(run.megabytes for run in runs):6.0f} MB")
        ratio = statistics.median(after.cpu / before.cpu for before, after in zip(plain, like, strict=True))
        print(f"ratio {ratio:.2f}; {1 - told.null_count / len(told):.1%} of the kernels have a module")


if __name__ == "__main__":
    main()
