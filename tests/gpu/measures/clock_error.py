"""Do the clocks of host and GPU agree: does work start after the launch that started it?

tracekit allows for an error of some microseconds where much work shows it; what starts earlier has no launch.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "clock_error"
ABOUT = "no clock contradicts the launch of any work; the least and the median time from launch to start, in ns"
LIMIT_S = 180


def missing(machine: Machine) -> str | None:
    """A GPU."""
    return machine.no_gpu


def record(folder: Path, machine: Machine) -> None:
    """Records an eager model for long enough that clocks may drift."""
    target = ["tracekit.proof.programs.chain:make", "--warmup", "10", "--steps", "200"]
    recording.record(folder, [*target, *machine.recorder])


def judge(folder: Path, _machine: Machine) -> Evidence:
    """The time from each launch to its work, and the work whose launch the clocks contradict."""
    columns = ["name", "start_ns", "launch_start_ns", "cause"]
    work = comparing.rows(recording.dataset(folder), "kernels", columns)
    waits = [row["start_ns"] - row["launch_start_ns"] for row in work if row["launch_start_ns"] is not None]
    if not waits:
        return Evidence(["no work has a launch, so nothing was measured"], {"kernels": 0})
    without = [f"{row['name']} has no launch: {row['cause']}" for row in work if row["launch_start_ns"] is None]
    figures = {
        "kernels": len(work),
        "least_ns": min(waits),
        "median_ns": median(waits),
        "before_launch": sum(wait < 0 for wait in waits),
        "without_launch": len(without),
    }
    return Evidence(comparing.shortened(without), figures)
