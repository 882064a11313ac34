"""Do compiled pieces that are captured as CUDA graphs and replayed count, compute and belong as they should?"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.machine import NO_GPU
from tracekit.proof.programs.plans import COMPILING, LAYERS, PIECEWISE

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.dataset.opening import Dataset
    from tracekit.proof.machine import Machine

NAME = "pieces"
ABOUT = (
    "compiled pieces: as many graphs as follow from the layers, right results, products of the modules of the weights"
)
LIMIT_S = 300
#: One attention in each layer; a piece before, between and behind them.
_ATTENTIONS, _BETWEEN = LAYERS, LAYERS + 1
COUNTERS = {
    "graphs_seen": 1,
    "pieces_seen": _ATTENTIONS + _BETWEEN,
    "capturable_pieces_seen": _BETWEEN,
    "graphs_captured": _BETWEEN,
}
RUNS = {"captured": _BETWEEN, "replayed": _BETWEEN * (PIECEWISE - 1), "eager": _ATTENTIONS * PIECEWISE}


def missing(_machine: Machine) -> None:
    """Nothing: without a GPU, a stand-in counts graphs."""


def record(folder: Path, machine: Machine) -> None:
    """Records graph captures and replays; compiling comes before."""
    steps = ["--warmup", str(COMPILING), "--steps", str(PIECEWISE)]
    recording.record(folder, ["tracekit.proof.programs.pieces:main", "--ops", *steps, *machine.recorder])


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares counters, runs and results with what follows from the program, products with the shapes of weights."""
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    counted = {name: truth["counters"].get(name) for name in COUNTERS}
    problems = [] if truth["right"] else ["the pieces computed something else than the model"]
    problems += comparing.differences("counted", Counter(counted), Counter(COUNTERS))
    problems += comparing.differences("runs of pieces", _runs(dataset), Counter(RUNS))
    steps = sorted(row["step_id"] for row in comparing.rows(dataset, "steps", ["step_id"]))
    # Replayed work was launched by no operator: on a GPU only the run before the graph capture has shapes.
    shaped = steps[:1] if machine.gpus else steps
    found = comparing.products(dataset, truth, shaped)
    problems += comparing.product_problems(found, {(path, "forward"): len(shaped) for path in truth["linears"]})
    unknown = comparing.nodes_unknown(dataset, steps[1:], machine)
    if machine.gpus and unknown is None:
        problems += _replay_problems(dataset, truth, steps)
    unproved = unknown if machine.gpus else f"{NO_GPU}: the stand-in counted graphs and replayed none"
    return Evidence(problems, {**counted, "products": found.counts.total()}, unproved)


def _runs(dataset: Dataset) -> Counter[str]:
    """How pieces ran, by the texts of their ranges."""
    ranges = comparing.rows(dataset, "ranges", ["text", "marker"])
    return Counter(json.loads(row["text"])["How"] for row in ranges if row["marker"] == "piece")


def _replay_problems(dataset: Dataset, truth: dict[str, Any], steps: list[int]) -> list[str]:
    """Kernels of replays that differ from those of the run before the graph capture, for the modules with weights."""
    # The step that captures replays at its end, too; what is no graph's is the run before.
    true = _of_linears(dataset, truth, steps[:1], eager=True)
    problems = [] if true else ["the step that captures has no kernels of Linears, so there is nothing to compare with"]
    for number in steps[1:]:
        replayed = _of_linears(dataset, truth, [number])
        problems += [f"replay {number} lacks {path}: {name}" for path, name in sorted(true - replayed)]
        problems += [f"replay {number} has {path}: {name} of no eager run" for path, name in sorted(replayed - true)]
    return comparing.shortened(problems)


def _of_linears(
    dataset: Dataset, truth: dict[str, Any], steps: list[int], *, eager: bool = False
) -> set[tuple[str, str]]:
    """Module and name of the work of Linears in some steps; of all, or of what no graph launched."""
    work = comparing.rows(dataset, "kernels", ["module", "kind", "name", "step_id", "graph_node_id"])
    return {
        (row["module"], comparing.name(row))
        for row in work
        if row["module"] in truth["linears"] and row["step_id"] in steps and not (eager and row["graph_node_id"])
    }
