"""Does a CUDA graph that nsys traces as a whole belong to the call that holds its graph capture?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.machine import NO_GPU
from tracekit.proof.programs.plans import CALLS_IN, CAPTURE, EAGER, IN_WINDOW, REPLAY

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "whole_graph"
ABOUT = "with --cuda-graph-trace=graph, every replay is one row, of the model whose call holds the graph capture"
LIMIT_S = 180
_STEPS = [*IN_WINDOW[0], *IN_WINDOW[1]]
_GRAPH = "graph"


def missing(machine: Machine) -> str | None:
    """An nsys that exports."""
    return machine.nsys_problem


def record(folder: Path, _machine: Machine) -> None:
    """Runs the program, which marks itself, under an nsys that traces whole graphs."""
    command = [sys.executable, "-m", "tracekit.proof.programs.replayed"]
    recording.run_under_nsys(folder, command, {"--cuda-graph-trace": _GRAPH})


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares calls with hooks, and graphs with the number of replays."""
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    problems = [] if truth["right"] else ["replays computed something else than eager calls"]
    numbered = sorted(row["step_id"] for row in comparing.rows(dataset, "steps", ["step_id"]))
    # The first step prepares, before there are hooks.
    expected = sum(CALLS_IN[name] for name in _STEPS[1:])
    problems += comparing.call_problems(dataset, truth, expected, steps=set(numbered[1:]))
    graphs = [row for row in comparing.rows(dataset, "kernels", ["kind", "module", "cause"]) if row["kind"] == _GRAPH]
    if machine.gpus:
        problems += _graph_problems([row["module"] or row["cause"] for row in graphs], truth["calls"][0][0][0])
    figures = {"graphs": len(graphs), "eager_steps": _STEPS.count(EAGER), "graph_captures": _STEPS.count(CAPTURE)}
    return Evidence(problems, figures, None if machine.gpus else f"{NO_GPU}: nsys recorded markers and no graphs")


def _graph_problems(modules: list[str], top: str) -> list[str]:
    expected = _STEPS.count(REPLAY)
    if not modules:
        return ["the report has no graphs traced as a whole; nsys before 2024 does not export them"]
    wrong = [f"a graph is of {module}, expected {top}" for module in modules if module != top]
    number = [f"{len(modules)} graphs are in the report, expected {expected}"] if len(modules) != expected else []
    return [*number, *comparing.shortened(wrong)]
