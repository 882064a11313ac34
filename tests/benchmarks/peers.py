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

import argparse
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import tracekit
from tests.benchmarks.measuring import benchmark, figures_of, tell, tracekit_command
from tests.benchmarks.serving_report import write_report as write_serving_report
from tests.simulator import Plan, Truth, capturing, simulate, truth_of, write_report
from tracekit.markers.base import ModuleMarker
from tracekit.trace.decoding import decode

#: Kernels by module, each also in those above it.
Counts = Counter[str]
Command = Callable[[Path], list[str | Path]]

_SIZE = {"modules": 16, "actions": 300, "steps": "vllm", "dialect": "vllm"}
_LEFT_OUT = "orphans graph_updates graph_extras spans plain_ranges empty_ranges shared recursive"
_GRAPHS = {"processes": 1, "threads": 1, **dict.fromkeys(_LEFT_OUT.split(), False)}

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
    found = counts(one.module for one in truth.work if one.work.kind == "kernel")
    called = {call.path for call in truth.calls}
    return Counter({path: number for path, number in found.items() if path in called})


def by_tracekit(report: Path) -> Counts:
    with tempfile.TemporaryDirectory() as folder:
        dataset = tracekit.parse(report, Path(folder) / "out")
        kernels = dataset.kernels(["kind", "module"])
        owned = kernels[(kernels.kind == "kernel") & kernels.module.notna()]
        return counts(owned.module.tolist())


def by_nsys_stats(command: Command, report: Path) -> Counts:
    # Not CSV: quotes in a range's text are not escaped there.
    found: Counts = Counter()
    for row in rows_of(command(report)):
        if path := module_of(row["NVTX Range"].removeprefix(":")):
            found[path] += int(row["Kern Inst"])
    return found


def by_nsys_ai(command: Command, report: Path) -> Counts:
    found: Counts = Counter()
    for row in rows_of(command(report)):
        texts = str(row.get("nvtx_path", "")).split(" > ")
        found.update({path for text in texts if (path := module_of(text))})
    return found


def rows_of(arguments: list[str | Path]) -> list[dict[str, Any]]:
    return json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def module_of(text: str) -> str | None:
    found = decode([text]).markers
    return found[0].path if found and isinstance(found[0], ModuleMarker) else None


def compare(kind: Callable[[int], Plan], tool: Callable[[Path], Counts], programs: int) -> str:
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


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Prints a line for every kind of program and tool."""
    commands: dict[str, Command] = {
        "tracekit": lambda report: tracekit_command("parse", report, "-o", folder / "out", "--force")
    }
    tools: dict[str, Callable[[Path], Counts]] = {"tracekit": by_tracekit}
    if args.nsys:
        options = ["stats", "-q", "-r", "nvtx_kern_sum", "--format", "json"]
        commands["nsys stats"] = lambda report: [args.nsys, *options, report]
        tools["nsys stats"] = partial(by_nsys_stats, commands["nsys stats"])
    if args.nsys_ai:
        limits = ["-p", "limit=1000000000", "--format", "json"]
        commands["nsys-ai"] = lambda report: [args.nsys_ai, "skill", "run", "nvtx_kernel_map", report, *limits]
        tools["nsys-ai"] = partial(by_nsys_ai, commands["nsys-ai"])
    for name, kind in KINDS.items():
        for tool, ask in tools.items():
            print(f"{name:36} {tool:12} {compare(kind, ask, args.programs)}", flush=True)
    if args.kernels:
        report = write_serving_report(folder / "report.sqlite", kernels=args.kernels)
        for tool, command in commands.items():
            try:
                tell(f"{tool} of {args.kernels:,}", [figures_of(command(report))])
            except subprocess.CalledProcessError as error:
                print(f"{tool} failed: {error.stderr.strip().splitlines()[-1:]}", flush=True)


if __name__ == "__main__":
    more = {
        "--nsys": {"type": Path, "help": "NVIDIA's nsys, for nsys stats"},
        "--nsys-ai": {"type": Path, "help": "the command nsys-ai"},
    }
    benchmark(__doc__, measure, more, programs=5, kernels=0)
