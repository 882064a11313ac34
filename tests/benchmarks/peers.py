"""Which kernels of a module each tool finds: tracekit, NVIDIA's ``nsys stats`` and nsys-ai, where the answer is known.

``python -m tests.benchmarks.peers [--nsys NSYS] [--nsys-ai NSYS_AI] [--programs 5] [--kernels 1000000]``. Simulated
programs are written as reports; the simulator knows how many kernels each module has, with all modules below it. A
tool's count of a module is right up to the true count; what exceeds it is wrong. Both are shares of the true counts:
100 % and 0 % is a tool that misses nothing and is never wrong.

The other tools know ranges, not modules. In their favour, a range counts as the module that tracekit's decoder reads in
its text, a kernel counts for a module once, however many of its ranges are around it, and containers that are never
called, and so have no range, are ignored.

``--kernels`` also measures the time and memory of each command on one report of that many kernels; all its ranges end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import tracekit
from tests.benchmarks.measuring import figures_of
from tests.benchmarks.serving_report import write_report as write_serving_report
from tests.simulator import Plan, capturing, simulate, truth_of, write_report
from tracekit.markers.base import ModuleMarker
from tracekit.trace.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.benchmarks.measuring import Figures
    from tests.simulator import Truth

    #: Kernels by module, each also in those above it.
    Counts = Counter[str]

_SIZE = {"modules": 16, "actions": 300, "steps": "vllm", "dialect": "vllm"}
_GRAPHS = {
    "processes": 1,
    "threads": 1,
    "orphans": False,
    "graph_updates": False,
    "graph_extras": False,
    "spans": False,
    "plain_ranges": False,
    "empty_ranges": False,
    "shared": False,
    "recursive": False,
}

#: What is compared, and the programs of that kind by seed.
KINDS: dict[str, Callable[[int], Plan]] = {
    "eager, one process": lambda seed: Plan(seed=seed, **_SIZE),
    "eager, two processes in one report": lambda seed: Plan(seed=seed, processes=2, **_SIZE),
    "a module shared by two parents": lambda seed: Plan(seed=seed, shared=True, **_SIZE),
    "replayed from CUDA graphs": lambda seed: capturing(seed, piecewise=False, **_GRAPHS, **_SIZE),
    "replayed from piecewise graphs": lambda seed: capturing(seed, **_GRAPHS, **_SIZE),
}


def counts(paths: Iterable[str | None]) -> Counts:
    found: Counts = Counter()
    for path in paths:
        parts = path.split(".") if path else []
        found.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return found


def true_counts(truth: Truth) -> Counts:
    found = counts(work.module for work in truth.work if work.kind == "kernel")
    called = {call.path for call in truth.calls}
    return Counter({path: number for path, number in found.items() if path in called})


def by_tracekit(report: Path) -> Counts:
    with tempfile.TemporaryDirectory() as folder:
        dataset = tracekit.parse(report, Path(folder) / "out")
        kernels = dataset.kernels(["kind", "module"])
        owned = kernels[(kernels.kind == "kernel") & kernels.module.notna()]
        return counts(owned.module.tolist())


def by_nsys_stats(nsys: Path) -> Callable[[Path], Counts]:
    def tool(report: Path) -> Counts:
        # Not CSV: quotes in a range's text are not escaped there.
        table = output(nsys_stats(nsys, report))
        found: Counts = Counter()
        for row in json.loads(table):
            if path := module_of(row["NVTX Range"].removeprefix(":")):
                found[path] += int(row["Kern Inst"])
        return found

    return tool


def by_nsys_ai(nsys_ai: Path) -> Callable[[Path], Counts]:
    def tool(report: Path) -> Counts:
        found: Counts = Counter()
        for row in json.loads(output(nsys_ai_map(nsys_ai, report))):
            texts = str(row.get("nvtx_path", "")).split(" > ")
            found.update({path for text in texts if (path := module_of(text))})
        return found

    return tool


def parse_command(report: Path) -> list[str | Path]:
    return [sys.executable, "-m", "tracekit", "parse", report, "-o", report.with_suffix(".tracekit"), "--force"]


def nsys_stats(nsys: Path, report: Path) -> list[str | Path]:
    return [nsys, "stats", "-q", "-r", "nvtx_kern_sum", "--format", "json", report]


def nsys_ai_map(nsys_ai: Path, report: Path) -> list[str | Path]:
    return [nsys_ai, "skill", "run", "nvtx_kernel_map", report, "-p", "limit=1000000000", "--format", "json"]


def output(arguments: list[str | Path]) -> str:
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def module_of(text: str) -> str | None:
    found = decode([text]).markers
    return found[0].path if found and isinstance(found[0], ModuleMarker) else None


def measure(kind: Callable[[int], Plan], tool: Callable[[Path], Counts], programs: int) -> str:
    there = right = wrong = failed = 0
    for seed in range(programs):
        run = simulate(kind(seed))
        truth = truth_of(run)
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = tool(write_report(run, Path(folder) / "report.sqlite"))
            except subprocess.CalledProcessError:
                said, failed = Counter(), failed + 1
        true = true_counts(truth)
        elsewhere = {path for path in said if path not in counts(work.module for work in truth.work)}
        said = Counter({path: said[path] for path in elsewhere | set(true)})
        there, right = there + true.total(), right + (true & said).total()
        wrong += (said - true).total()
    note = f", failed on {failed} of {programs}" if failed else ""
    return f"{right / there:.1%} right, {wrong / there:.1%} wrong{note}"


def measure_speed(commands: dict[str, Callable[[Path], list[str | Path]]], kernels: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = write_serving_report(Path(folder) / "report.sqlite", kernels=kernels)
        for tool, command in commands.items():
            try:
                used = figures_of(command(report))
            except subprocess.CalledProcessError as error:
                print(f"{kernels:>9,} kernels {tool:12} failed: {error.stderr.strip().splitlines()[-1:]}", flush=True)
                continue
            print(f"{kernels:>9,} kernels {tool:12} {_told(used)}", flush=True)


def _told(used: Figures) -> str:
    return f"{used.wall:6.1f} s, {used.cpu:6.1f} s of all cores, peak {used.megabytes:6.0f} MB"


def main() -> int:
    """Prints a line for every kind of program and tool."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nsys", type=Path, help="NVIDIA's nsys, for nsys stats")
    parser.add_argument("--nsys-ai", type=Path, help="the command nsys-ai")
    parser.add_argument("--programs", type=int, default=5)
    parser.add_argument("--kernels", type=int, help="measure speed, too, on a report of so many kernels")
    args = parser.parse_args()
    tools: dict[str, Callable[[Path], Counts]] = {"tracekit": by_tracekit}
    if args.nsys:
        tools["nsys stats"] = by_nsys_stats(args.nsys)
    if args.nsys_ai:
        tools["nsys-ai"] = by_nsys_ai(args.nsys_ai)
    for name, kind in KINDS.items():
        for tool, ask in tools.items():
            print(f"{name:36} {tool:12} {measure(kind, ask, args.programs)}", flush=True)
    if args.kernels:
        commands: dict[str, Callable[[Path], list[str | Path]]] = {"tracekit": parse_command}
        if args.nsys:
            commands["nsys stats"] = lambda report: nsys_stats(args.nsys, report)
        if args.nsys_ai:
            commands["nsys-ai"] = lambda report: nsys_ai_map(args.nsys_ai, report)
        measure_speed(commands, args.kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
