"""What ``tracekit parse`` takes of reports of many kinds, each beside a floor that takes turns with it.

``python -m tests.benchmarks.parse_speed KIND [--kernels 1000000] [--runs 3] …``. Every figure is of a process of its
own but SQLite's, which merely sums the columns that are read. Kinds:

serving     a serving engine's report, its texts registered and inline, and one layer's kernels asked for
folders     the same as folders of tables, beside the file
graphs      all kernels replayed from CUDA graphs, of ``--captures`` graph captures
processes   ``--processes`` with as many kernels each, on one core and on all; memory of all processes together
many        ``--reports`` small ones in one dataset, each: the floor is one process that scans report after report,
            before and after; ``--apart`` are also parsed by a command each; memory of all processes together
like        with a marked run of a twentieth to align with: nothing is marked, batches change from step to step, the
            grids of attention with the context, and in one step of a hundred a kernel is missing
chrome      a Chrome trace of ``--megabytes``, beside what orjson takes merely to decode it, also without the garbage
            collector of Python, which walks over the objects again and again
stacks      ``--traces``, or one in which each kernel is launched inside 12 functions of Python: without functions that
            are no modules, as tracekit read them before it knew lines, and without all of them (unmarked)
"""

import argparse
import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import tracekit
from tests.benchmarks.chrome_trace import write_trace
from tests.benchmarks.measuring import (
    GRAPH_SCANS,
    SCANS,
    Figures,
    benchmark,
    compare,
    figures_of,
    figures_of_all,
    in_turn,
    parse_figures,
    scan_figures,
    tell,
    tracekit_command,
)
from tests.benchmarks.serving_report import KERNELS_PER_PART, LAYERS, multiply, write_graph_report, write_report
from tests.readers.folders import SUFFIXES, as_folder

SUMS = "SQLite's sums"
_DECODE = """
import gc, sys, time
from pathlib import Path
import orjson
text = Path(sys.argv[1]).read_bytes()
if sys.argv[2] == "without":
    gc.disable()
begin = time.perf_counter()
orjson.loads(text)
print(time.perf_counter() - begin)
"""
_PER_STEP = LAYERS * sum(KERNELS_PER_PART.values()) + 1


def beside_sums(report: Path, runs: int, scanned: dict[str, str] = SCANS) -> Path:
    """The dataset."""
    out = report.with_suffix(".tracekit")
    print(f"{report.stem}, {report.stat().st_size / 1e6:.0f} MB")
    scan_figures(report, scanned)  # so that the file is in memory
    forms = {SUMS: partial(scan_figures, report, scanned), "parse": partial(parse_figures, [report], out)}
    compare(runs, forms, SUMS)
    return out


def serving(args: argparse.Namespace, folder: Path) -> None:
    for name, inline in (("registered", False), ("inline", True)):
        report = write_report(folder / f"{name}.sqlite", kernels=args.kernels, inline_text=inline)
        dataset = tracekit.load(beside_sums(report, args.runs))
        paths = dataset.table("modules", ["path"]).column("path").to_pylist()
        layer = next(path for path in paths if path.endswith("layers.3"))
        dataset.subtree(layer).table("kernels")
        begin = time.perf_counter()
        dataset.subtree(layer).table("kernels")
        print(f"subtree of a layer {1000 * (time.perf_counter() - begin):.1f} ms")


def folders(args: argparse.Namespace, folder: Path) -> None:
    report, out = write_report(folder / "report.sqlite", kernels=args.kernels), folder / "out"
    for suffix in SUFFIXES:
        tables = as_folder(report, folder / f"tables{suffix}", suffix)
        forms = {"SQLite": partial(parse_figures, [report], out), suffix: partial(parse_figures, [tables], out)}
        compare(args.runs, forms, "SQLite")


def graphs(args: argparse.Namespace, folder: Path) -> None:
    report = write_graph_report(folder / "graphs.sqlite", kernels=args.kernels, captures=args.captures)
    beside_sums(report, args.runs, GRAPH_SCANS)


def processes(args: argparse.Namespace, folder: Path) -> None:
    report = multiply(write_report(folder / "report.sqlite", kernels=args.kernels), args.processes)
    every = range(os.cpu_count() or 1)
    forms = {name: partial(_on_cores, cores, report) for name, cores in (("one core", [0]), ("all cores", [*every]))}
    compare(args.runs, {SUMS: partial(scan_figures, report), **forms}, SUMS)


def _on_cores(cores: list[int], report: Path) -> Figures:
    parse = f"import os, runpy; os.sched_setaffinity(0, {cores}); runpy.run_module('tracekit', None, '__main__')"
    out = report.with_suffix(".tracekit")
    return figures_of_all([sys.executable, "-c", parse, "parse", report, "-o", out, "--force", "--quiet"])


def many(args: argparse.Namespace, folder: Path) -> None:
    first = write_report(folder / "rank0.sqlite", kernels=args.kernels)
    paths = [first, *(Path(shutil.copy(first, folder / f"rank{at}.sqlite")) for at in range(1, args.reports))]
    command = tracekit_command("parse", *paths, "--force", "-o", folder / "run")
    floor = [*map(scan_figures, paths)]
    together, summary = (_each(figures_of_all(line), args.reports) for line in ([*command, "--quiet"], command))
    floor = [Figures(*(sum(column) / len(floor) for column in zip(*floor, *map(scan_figures, paths), strict=True)))]
    tell("together", together, floor)
    tell("with the summary", summary, together)
    tell("a command for each", [parse_figures([path], folder / "one") for path in paths[: args.apart]])


def _each(figures: Figures, reports: int) -> list[Figures]:
    """The share of one report in what all took together."""
    return [Figures(figures.wall / reports, figures.cpu / reports, figures.megabytes)]


def like(args: argparse.Namespace, folder: Path) -> None:
    marked = tracekit.parse(write_report(folder / "marked.sqlite", kernels=args.kernels // 20)).folder
    report, out = _unmarked(write_report(folder / "report.sqlite", kernels=args.kernels)), folder / "out"
    forms = {
        "without --like": partial(parse_figures, [report], out),
        "with --like": partial(parse_figures, [report], out, "--like", str(marked)),
    }
    compare(args.runs, forms, "without --like")
    modules = tracekit.load(out).table("kernels", ["module"]).column("module")
    print(f"{1 - modules.null_count / len(modules):.1%} of the kernels have a module")


def _unmarked(path: Path) -> Path:
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


def chrome(args: argparse.Namespace, folder: Path) -> None:
    trace = folder / "trace.json"
    events = write_trace(trace, megabytes=args.megabytes)
    print(f"{events:,} events, {trace.stat().st_size / 1e6:.0f} MB")
    forms = {
        "orjson": partial(_decoded, trace, "with"),
        "orjson, no collector": partial(_decoded, trace, "without"),
        "start of Python": lambda: figures_of([sys.executable, "-c", "import tracekit.pipeline"]),
        "parse": partial(parse_figures, [trace], folder / "out"),
    }
    found = compare(args.runs, forms, "orjson")
    tell("parse, no collector", found["parse"], found["orjson, no collector"])


def _decoded(trace: Path, collector: str) -> Figures:
    line = [sys.executable, "-c", _DECODE, trace, collector]
    seconds = float(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return Figures(seconds, seconds, 0)


def stacks(args: argparse.Namespace, folder: Path) -> None:
    written = folder / "written.json"
    if not args.traces:
        write_trace(written, megabytes=args.megabytes, stack=12)
    for path in args.traces or [written]:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text()
        events = json.loads(text)["traceEvents"]
        unmarked = [row for row in events if not _is_function(row)]
        without = [row for row in events if not _is_function(row) or str(row["name"]).startswith("nn.Module: ")]
        print(f"{path.name}: {len(events) - len(unmarked):,} functions in {len(events):,} events")
        forms = {"with": events, "without": without, "unmarked": unmarked}
        for form, rows in forms.items():
            (folder / f"{form}.json").write_text(json.dumps({"traceEvents": rows}, indent=1))
        parse = {form: partial(parse_figures, [folder / f"{form}.json"], folder / "out") for form in forms}
        found = in_turn(args.runs, parse)
        for form in ("without", "unmarked"):
            tell(form, found[form])
            tell(f"with, beside {form}", found["with"], found[form])


def _is_function(row: dict[str, object]) -> bool:
    return row.get("cat") == "python_function"


KINDS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    one.__name__: one for one in (serving, folders, graphs, processes, many, like, chrome, stacks)
}


def measure(args: argparse.Namespace, folder: Path) -> None:
    KINDS[args.kind](args, folder)


if __name__ == "__main__":
    more = {"kind": {"choices": KINDS}, "--traces": {"nargs": "*", "type": Path, "help": "Chrome traces of your own"}}
    numbers = {"kernels": 1_000_000, "megabytes": 100.0, "captures": 67, "processes": 8, "reports": 20, "apart": 20}
    benchmark(__doc__, measure, more, runs=3, **numbers)
