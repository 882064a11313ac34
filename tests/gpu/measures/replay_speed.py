"""How fast are compiled pieces that are replayed from CUDA graphs, with and without static input buffers?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracekit.proof import recording
from tracekit.proof.base import Evidence
from tracekit.proof.machine import NO_GPU
from tracekit.proof.programs.plans import LAYERS

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "replay_speed"
ABOUT = "a call in ns: eager, in pieces with inputs copied and with the caller's own, and as one graph by hand"
LIMIT_S = 300
#: Both compiled models capture each of their pieces.
GRAPHS = 2 * (LAYERS + 1)


def missing(_machine: Machine) -> None:
    """Nothing: without a GPU, stand-ins run."""


def record(folder: Path, _machine: Machine) -> None:
    """Runs the program without a tool."""
    recording.run(folder, [sys.executable, "-m", "tests.gpu.programs.replay_speed"])


def judge(folder: Path, machine: Machine) -> Evidence:
    """The times; they count only if graphs were captured and compute what the model does."""
    truth = recording.truth(folder)
    problems = [] if truth["right"] else ["the pieces computed something else than the model"]
    if truth["graphs_captured"] != GRAPHS:
        problems.append(f"{truth['graphs_captured']} graphs were captured, expected {GRAPHS}")
    return Evidence(problems, truth["figures"], None if machine.gpus else f"{NO_GPU}: stand-ins replayed nothing")
