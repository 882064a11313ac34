"""With ``--ops``: is every product of the module whose weight it multiplies, by the shapes of its operator?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import STEPS, WARMUP

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "operators"
ABOUT = "with --ops, every product is of the module whose weight has its shape, and no Linear lacks one"
LIMIT_S = 180
_TARGET = ("tracekit.proof.programs.chain:make", "--ops", "--steps", str(STEPS), "--warmup", str(WARMUP))


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Records with operators."""
    recording.record(folder, [*_TARGET, *machine.recorder])


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares with hooks and with the shapes of weights."""
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    problems = comparing.call_problems(dataset, truth, STEPS)
    found = comparing.products(dataset, truth)
    calls = comparing.linear_calls(truth, STEPS)
    problems += comparing.product_problems(found, {(path, "forward"): number for path, number in calls.items()})
    return Evidence(problems, {"products": found.counts.total(), "linear_calls": calls.total()})
