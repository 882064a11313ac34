"""What does a marked call cost, under nsys and without a tool?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracekit.proof import recording
from tracekit.proof.base import Evidence

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "marker_cost"
ABOUT = "what a marked call costs the host beside a bare one, in ns, under nsys and without a tool"
LIMIT_S = 180
COMMAND = (sys.executable, "-m", "tests.gpu.programs.marked")
#: Where it runs without a tool.
ALONE = "alone"


def missing(machine: Machine) -> str | None:
    """The package that pushes the ranges."""
    return None if machine.nvtx else "the package nvtx, which pushes markers, is not installed"


def record(folder: Path, machine: Machine) -> None:
    """Runs the program with and without nsys."""
    (folder / ALONE).mkdir(exist_ok=True)
    recording.run(folder / ALONE, COMMAND)
    if machine.nsys_problem is None:
        recording.run_under_nsys(folder, COMMAND)


def judge(folder: Path, machine: Machine) -> Evidence:
    """The costs; under nsys they count only if it heard the markers."""
    figures = {f"{name}, no tool": cost for name, cost in recording.truth(folder / ALONE)["costs_ns"].items()}
    if machine.nsys_problem is not None:
        return Evidence([], figures, f"the cost under nsys: {machine.nsys_problem}")
    figures |= {f"{name}, nsys": cost for name, cost in recording.truth(folder)["costs_ns"].items()}
    ranges = recording.rows_of(folder, "calls")
    problems = [] if ranges else ["nsys heard no marker, so the figures are not those of a recording"]
    return Evidence(problems, {**figures, "calls_recorded": ranges})
