"""With ``--backward``: is the work of backward passes of the modules whose weights and gradients it multiplies?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import STEPS, WARMUP

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "backward"
ABOUT = "with --backward, each Linear has as many backward calls as forward ones, and two products in each of them"
LIMIT_S = 180
_TARGET = ("tracekit.proof.programs.chain:make", "--backward", "--ops", "--steps", str(STEPS), "--warmup", str(WARMUP))
#: The gradients of the input and of the weight.
_PRODUCTS = 2


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Records forward and backward passes."""
    recording.record(folder, [*_TARGET, *machine.recorder])


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares with hooks and with the shapes of weights."""
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    problems = comparing.call_problems(dataset, truth, STEPS)
    calls = comparing.linear_calls(truth, STEPS)
    backward = Counter(
        row["module"]
        for row in comparing.rows(dataset, "calls", ["module", "phase"])
        if row["phase"] == "backward" and row["module"] in calls
    )
    problems += comparing.differences("backward calls", backward, calls)
    found = comparing.products(dataset, truth)
    least = {(path, "forward"): number for path, number in calls.items()}
    least |= {(path, "backward"): number * _PRODUCTS for path, number in calls.items()}
    problems += comparing.product_problems(found, least)
    return Evidence(problems, {"products": found.counts.total(), "backward_calls": backward.total()})
