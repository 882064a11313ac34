"""Is every product of a model that torch.compile compiled as a whole of the module whose weight it multiplies?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import STEPS, WARMUP

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "compiled"
ABOUT = "under torch.compile, every product is of the module whose weight has its shape, and all work has a module"
LIMIT_S = 300
_TARGET = "tracekit.proof.programs.chain:make_compiled"


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Records compiled code, with operators, which tell the shapes."""
    steps = ["--warmup", str(WARMUP), "--steps", str(STEPS)]
    recording.record(folder, [_TARGET, "--ops", *steps, *machine.recorder])


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares with the shapes of weights."""
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    found = comparing.products(dataset, truth)
    problems = comparing.product_problems(found, {(path, "forward"): STEPS for path in truth["linears"]})
    work = comparing.rows(dataset, "kernels", ["name", "module", "method", "cause"])
    without = [f"{row['name']} has no module: {row['cause']}" for row in work if row["module"] is None]
    mapped = sum(row["method"] == "compiled" for row in work)
    problems += [] if mapped else ["no work was attributed by a kernel map"]
    problems += comparing.shortened(without)
    return Evidence(problems, {"products": found.counts.total(), "mapped_work": mapped, "work": len(work)})
