"""Is what a module sends to other ranks its own work? One GPU is one rank, which gathers from itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.machine import NO_GPU
from tracekit.proof.programs.plans import GATHERING

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "nccl"
ABOUT = "what a module gathers with NCCL is its own work, in every call (of one rank)"
LIMIT_S = 240
_MODULE = "Ranks.gather"


def missing(machine: Machine) -> str | None:
    """On a GPU, a torch with NCCL."""
    return "this build of torch has no NCCL" if machine.gpus and machine.nccl is None else None


def record(folder: Path, machine: Machine) -> None:
    """Records a model that gathers."""
    command = [sys.executable, "-m", "tracekit.proof.programs.gathering"]
    recording.record(folder, machine.recorder, trailing=command)


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares with hooks, and looks for the module's own work in each of its calls."""
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    problems = [] if truth["right"] else ["what was gathered is not what was sent"]
    problems += comparing.call_problems(dataset, truth, GATHERING)
    own = {
        row["call_id"]: row["kernel_self_count"]
        for row in comparing.rows(dataset, "calls", ["call_id", "module", "kernel_self_count"])
        if row["module"] == _MODULE
    }
    problems += comparing.shortened([f"call {call_id} of {_MODULE} has no work" for call_id, n in own.items() if not n])
    work = comparing.rows(dataset, "kernels", ["name", "module"])
    sent = [row["name"] for row in work if row["module"] == _MODULE and _is_sent(row["name"])]
    if not machine.gpus and len(sent) != GATHERING:
        problems.append(f"{_MODULE} has {len(sent)} operators of gloo, expected {GATHERING}")
    names = ", ".join(sorted({row["name"] for row in work if row["module"] == _MODULE}))
    figures = {"backend": truth["backend"], "work": sum(own.values()), "names": names}
    return Evidence(problems, figures, None if machine.gpus else f"{NO_GPU}: gloo gathered in place of NCCL")


def _is_sent(name: str) -> bool:
    return name.startswith("c10d::")
