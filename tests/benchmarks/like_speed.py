"""What ``tracekit parse --like`` costs beside the same parse without it, in CPU time and memory.

``python -m tests.benchmarks.like_speed [--kernels 1000000] [--runs 3]``. The marked run is a twentieth of the report
like a serving engine's. In production nothing is marked, batches change from step to step, the grids of attention with
the length of the context, and in one step of a hundred a kernel is missing. Each run is a process of its own; the two
take turns.
"""

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

import tracekit
from tests.benchmarks.measuring import benchmark, compare, parse_figures
from tests.benchmarks.serving_report import KERNELS_PER_PART, LAYERS, write_report

_PER_STEP = LAYERS * sum(KERNELS_PER_PART.values()) + 1


def unmarked(path: Path) -> Path:
    """Drops the markers, changes the grids, and leaves kernels out."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    with closing(sqlite3.connect(path)) as db:
        db.create_function("step", 1, lambda launch: (launch - 1) // _PER_STEP, deterministic=True)
        db.execute("DELETE FROM NVTX_EVENTS")
        db.execute(f"UPDATE {table} SET gridX = gridX * (1 + step(correlationId) % 7)")  # noqa: S608
        one_of_layer = f"(correlationId - 1) % {_PER_STEP} % {_PER_STEP // LAYERS} = 4"
        db.execute(f"UPDATE {table} SET gridY = 1 + step(correlationId) / 8 % 24 WHERE {one_of_layer}")  # noqa: S608
        db.execute(f"DELETE FROM {table} WHERE correlationId % {100 * _PER_STEP} = 1000")  # noqa: S608
        db.commit()
    return path


def measure(args: argparse.Namespace, folder: Path) -> None:
    marked = tracekit.parse(write_report(folder / "marked.sqlite", kernels=args.kernels // 20)).folder
    report, out = unmarked(write_report(folder / "report.sqlite", kernels=args.kernels)), folder / "out"
    forms = {
        "without --like": lambda: parse_figures([report], out),
        "with --like": lambda: parse_figures([report], out, "--like", str(marked)),
    }
    compare(args.runs, forms, "without --like")
    modules = tracekit.load(out).table("kernels", ["module"]).column("module")
    print(f"{1 - modules.null_count / len(modules):.1%} of the kernels have a module")


if __name__ == "__main__":
    benchmark(__doc__, measure, kernels=1_000_000, runs=3)
