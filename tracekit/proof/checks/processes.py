"""Are two processes that run at once recorded in one report, and is the work of each its own?"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import WORKERS

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.dataset.opening import Dataset
    from tracekit.proof.machine import Machine

NAME = "processes"
ABOUT = (
    "two processes at once are in one report: the calls of each are those that its hooks counted, its work is its own"
)
LIMIT_S = 300


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Records a command that starts two processes."""
    command = [sys.executable, "-m", "tracekit.proof.programs.workers"]
    recording.record(folder, machine.recorder, trailing=command)


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares the calls of each process with its hooks, and the work of both."""
    dataset, truths = recording.dataset(folder), recording.truths(folder)
    made = sorted(len(truth["calls"]) for truth in truths)
    problems = [] if made == sorted(WORKERS) else [f"the processes made {made} calls, expected {sorted(WORKERS)}"]
    for truth in truths:
        problems += comparing.call_problems(dataset, truth, len(truth["calls"]))
    problems += _work_problems(dataset, truths)
    calls = comparing.rows(dataset, "calls", ["pid"])
    return Evidence(problems, {"processes": len({row["pid"] for row in calls}), "calls": len(calls)})


def _work_problems(dataset: Dataset, truths: list[dict[str, Any]]) -> list[str]:
    """Modules whose work in the processes is not as the calls that each made."""
    work: Counter[tuple[int, str]] = Counter()
    for row in comparing.rows(dataset, "kernels", ["pid", "module"]):
        if row["module"] is not None:
            work[row["pid"], row["module"]] += 1
    first, *others = truths
    problems = [] if work else ["no work with a module is in the report"]
    for other in others:
        for path in first["linears"]:
            one, two = work[first["pid"], path], work[other["pid"], path]
            if one * len(other["calls"]) != two * len(first["calls"]):
                problems.append(f"{path} has {one} and {two} pieces of work in the processes, not as their calls")
    return comparing.shortened(problems)
