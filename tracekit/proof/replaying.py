"""Whether steps that replay a CUDA graph have the work of eager ones, each piece of the same module."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracekit.proof import comparing, recording
from tracekit.proof.base import Evidence
from tracekit.proof.machine import NO_GPU
from tracekit.proof.programs.plans import CALLS_IN, EAGER, REPLAY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.dataset.opening import Dataset
    from tracekit.proof.machine import Machine

#: Every Linear runs this on a CPU, with and without its module.
_PRODUCT = "aten::addmm"


def evidence(folder: Path, machine: Machine, steps: Sequence[str], *, capture_recorded: bool = True) -> Evidence:
    """Judges a recording of ``programs/replayed.py``.

    Args:
        folder: Where it is.
        machine: What it ran on.
        steps: The names of the steps that were recorded.
        capture_recorded: Whether the graph capture must be in the report. If not, replayed work must have no module.
    """
    dataset, truth = recording.dataset(folder), recording.truth(folder)
    named = comparing.steps_named(dataset)
    problems = [] if truth["right"] else ["replays computed something else than eager calls"]
    problems += [
        f"{len(named[name])} steps {name!r} are in the report, expected {steps.count(name)}"
        for name in (EAGER, REPLAY)
        if len(named[name]) != steps.count(name)
    ]
    calls = CALLS_IN[EAGER] * steps.count(EAGER)
    problems += comparing.call_problems(dataset, truth, calls, steps=named[EAGER])
    unknown = comparing.nodes_unknown(dataset, named[REPLAY], machine) if capture_recorded else None
    known = capture_recorded and unknown is None
    judged = (_as_eager if known else _without_modules) if machine.gpus else _stood_in
    problems += judged(dataset, named[EAGER], named[REPLAY])
    replayed = comparing.work_by_module(dataset, named[REPLAY])
    figures = {"replayed_work": replayed.total(), "replayed_work_with_module": _with_module(replayed).total()}
    unproved = unknown if machine.gpus else f"{NO_GPU}: a stand-in replayed, whose work has no modules"
    return Evidence(problems, figures, unproved)


def _as_eager(dataset: Dataset, eager: set[int], replays: set[int]) -> list[str]:
    """Where replayed work is not that of the eager step, by module and name."""
    if not (true := _with_module(comparing.work_by_module(dataset, eager))):
        return ["the eager step has no kernels with a module, so there is nothing to compare with"]
    problems = []
    for number in sorted(replays):
        replayed = _with_module(comparing.work_by_module(dataset, [number]))
        problems += comparing.differences(f"kernels in replay {number}", _spelled(replayed), _spelled(true))
    return problems


def _without_modules(dataset: Dataset, _eager: set[int], replays: set[int]) -> list[str]:
    """Replayed work that has a module, although none can be known."""
    replayed = comparing.work_by_module(dataset, replays)
    wrong = [
        f"{path} has {name} of a graph whose capture is not in the report" for path, name in _with_module(replayed)
    ]
    return comparing.shortened([*wrong, *([] if replayed else ["no replayed work is in the report"])])


def _stood_in(dataset: Dataset, eager: set[int], replays: set[int]) -> list[str]:
    """What is wrong with the stand-in: it runs as many products as an eager step, outside of all modules."""
    replayed = comparing.work_by_module(dataset, replays)
    true = sum(count for (_, name), count in comparing.work_by_module(dataset, eager).items() if name == _PRODUCT)
    problems = [f"{path} has {name} of a replay, in which no module ran" for path, name in _with_module(replayed)]
    if replayed[comparing.NONE, _PRODUCT] != true * len(replays):
        problems.append(f"{replayed[comparing.NONE, _PRODUCT]} products in replays, expected {true * len(replays)}")
    return comparing.shortened(problems)


def _with_module(work: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    return Counter({key: count for key, count in work.items() if key[0] != comparing.NONE})


def _spelled(work: Counter[tuple[str, str]]) -> Counter[str]:
    return Counter({f"{path}: {name}": count for (path, name), count in work.items()})
