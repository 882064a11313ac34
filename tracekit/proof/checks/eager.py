"""Is the time of an eager model, by module, exactly what torch.profiler measured?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof import comparing, profiler_trace, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import STEPS, WARMUP

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "eager"
ABOUT = "calls are those that hooks counted; work and time by module are those of torch.profiler's own trace, to the ns"
LIMIT_S = 180
_TARGET = ("tracekit.proof.programs.chain:make", "--steps", str(STEPS), "--warmup", str(WARMUP))


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, _machine: Machine) -> None:
    """Records with torch's engine, which leaves torch.profiler's trace, too."""
    recording.record(folder, [*_TARGET, "--engine", "torch", "--hierarchy"], ranges=True)


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares with hooks and with the trace."""
    dataset = recording.dataset(folder)
    problems = comparing.call_problems(dataset, recording.truth(folder), STEPS)
    true = profiler_trace.work_in(folder / recording.TRACE)
    counts, times = comparing.counts_by_module(dataset), comparing.times_by_module(dataset)
    problems += comparing.differences("pieces of work", counts, true.counts)
    problems += comparing.differences("ns", times, true.times_ns, tolerance=counts)
    if not true.counts.total():
        problems.append("torch.profiler's trace has no work, so nothing was compared")
    return Evidence(problems, {"work": counts.total(), "time_ns": times.total(), "modules": len(counts)})
