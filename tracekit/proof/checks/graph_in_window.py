"""Does the work replayed from a CUDA graph that is captured in the window belong to the modules of an eager call?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof import recording, replaying
from tracekit.proof.programs.plans import IN_WINDOW

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.base import Evidence
    from tracekit.proof.machine import Machine

NAME = "graph_in_window"
ABOUT = "a graph captured while recording: each replay has the kernels of an eager step, each of the same module"
LIMIT_S = 180
_BEFORE, _RECORDED = IN_WINDOW


def missing(_machine: Machine) -> None:
    """Nothing: without a GPU, a stand-in replays."""


def record(folder: Path, machine: Machine) -> None:
    """Records steps, some of them replayed."""
    steps = ["--warmup", str(len(_BEFORE)), "--steps", str(len(_RECORDED))]
    recording.record(folder, ["tracekit.proof.programs.replayed:in_window", *steps, *machine.recorder])


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares replayed steps with eager ones."""
    return replaying.evidence(folder, machine, _RECORDED)
