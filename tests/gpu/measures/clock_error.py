"""Do the clocks of host and GPU agree: does any kernel start before the launch that started it?"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "clock_error"
ABOUT = "no kernel starts before its launch begins; the least and the median time between the two, in ns"
LIMIT_S = 180


def missing(machine: Machine) -> str | None:
    """A GPU."""
    return machine.no_gpu


def record(folder: Path, machine: Machine) -> None:
    """Records an eager model for long enough that clocks may drift."""
    target = ["tracekit.proof.programs.chain:make", "--warmup", "10", "--steps", "200"]
    recording.record(folder, [*target, "--engine", machine.engine])


def judge(folder: Path, _machine: Machine) -> Evidence:
    """The time from each launch to its work."""
    work = comparing.rows(recording.dataset(folder), "kernels", ["start_ns", "launch_start_ns"])
    waits = [row["start_ns"] - row["launch_start_ns"] for row in work if row["launch_start_ns"] is not None]
    if not waits:
        return Evidence(["no work has a launch, so nothing was measured"], {"kernels": 0})
    early = [wait for wait in waits if wait < 0]
    figures = {"kernels": len(waits), "least_ns": min(waits), "median_ns": median(waits), "before_launch": len(early)}
    return Evidence([f"a kernel starts {-min(early):,} ns before its launch"] if early else [], figures)
