"""Do the markers of all modules reach nsys, and with them the kernels that torch.profiler sees?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracekit.proof import comparing, profiler_trace, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import STEPS, WARMUP

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "markers"
ABOUT = "markers under nsys are the calls that hooks counted; every module has as many kernels as torch.profiler sees"
LIMIT_S = 240
_TARGET = ("tracekit.proof.programs.chain:make", "--steps", str(STEPS), "--warmup", str(WARMUP))
#: Where the same model is recorded with torch.profiler, to compare kernels.
_PROFILED = "profiled"


def missing(_machine: Machine) -> None:
    """Nothing: without nsys, torch's engine takes its place."""


def record(folder: Path, machine: Machine) -> None:
    """Records with nsys; on a GPU, the same with torch.profiler."""
    engine = "nsys" if machine.nsys_problem is None else "torch"
    recording.record(folder, [*_TARGET, "--engine", engine])
    if machine.engine == "nsys":
        (folder / _PROFILED).mkdir(exist_ok=True)
        recording.record(folder / _PROFILED, [*_TARGET, "--engine", "torch", "--hierarchy"], ranges=True)


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares calls with hooks, and kernels by module with torch.profiler's."""
    dataset = recording.dataset(folder)
    problems = comparing.call_problems(dataset, recording.truth(folder), STEPS)
    kernels = comparing.counts_by_module(dataset)
    if machine.engine == "nsys":
        true = profiler_trace.work_in(folder / _PROFILED / recording.TRACE).counts
        problems += comparing.differences("kernels", _of_modules(kernels), _of_modules(true))
    figures = {"calls": len(comparing.rows(dataset, "calls", ["call_id"])), "kernels": kernels.total()}
    lacking = machine.nsys_problem
    return Evidence(problems, figures, f"markers under nsys: {lacking}; torch's engine recorded" if lacking else None)


def _of_modules(counts: Counter[str]) -> Counter[str]:
    """Without work outside of modules: the profilers' own is not the same."""
    return Counter({path: count for path, count in counts.items() if path != comparing.NONE})
