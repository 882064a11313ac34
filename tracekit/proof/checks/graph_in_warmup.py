"""Does the work replayed from a CUDA graph that is captured in the warmup belong to the modules of an eager call?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof import recording, replaying
from tracekit.proof.programs.plans import IN_WARMUP

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.base import Evidence
    from tracekit.proof.machine import Machine

NAME = "graph_in_warmup"
ABOUT = (
    "a graph captured in the warm-up: under nsys as if captured while recording; with torch's engine, whose report "
    "lacks the graph capture, replayed work has a cause and no module"
)
LIMIT_S = 180
_BEFORE, _RECORDED = IN_WARMUP


def missing(_machine: Machine) -> None:
    """Nothing: without a GPU, a stand-in replays."""


def record(folder: Path, machine: Machine) -> None:
    """Records steps, some of them replayed."""
    steps = ["--warmup", str(len(_BEFORE)), "--steps", str(len(_RECORDED))]
    recording.record(folder, ["tracekit.proof.programs.replayed:in_warmup", *steps, *machine.recorder])


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares replayed steps with eager ones."""
    # nsys records from the graph capture on; torch's engine begins after the warm-up.
    known = machine.engine == "nsys"
    return replaying.evidence(folder, machine, _RECORDED, capture_recorded=known)
