"""Modules whose work the device finishes faster than the host launches it, which CUDA graphs would serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.changes import Changing
from tracekit.arrays.intervals import covered
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers.base import OPERATOR

NAME = "launch_bound"
_ADVICE = (
    "The device waits for the host to launch the small kernels of this module. "
    'Replay it from a CUDA graph: torch.compile(mode="reduce-overhead"), or torch.cuda.graph around it.'
)

#: Kinds of a budget: the device waits for the host to launch; the device works.
_HOST = ("launch", "host_code")
_WORKS = ("compute", "communication", "communication_wait", "copy")
#: The device must wait for launches for this share of the step.
_LEAST_SHARE = 0.01
#: How long a device takes between nodes of a graph, where the recording has no work that follows other work at once.
_BETWEEN_NODES_NS = 500


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """The outermost modules that can be captured: no call in them blocks."""
    budget = steps.model.before
    if sum(budget.get(kind, 0) for kind in _HOST) < _LEAST_SHARE * steps.step_ns:
        return
    idle = sum(ns for kind, ns in budget.items() if kind not in _WORKS)
    work, modules = steps.work, steps.modules
    launches = (steps.launched >= 0) & ~np.append(work.from_replay, False)[steps.launched]
    launching = _subtree(steps, work.module[steps.launched[launches & steps.counted(np.arange(launches.size))]])
    waits = np.flatnonzero(steps.events.blocks)
    waiting = _subtree(steps, steps.events.module[waits[steps.counted(waits)]])
    called = np.zeros(len(modules.path), dtype=bool)
    called[steps.calls.module[steps.calls.module >= 0]] = True
    called &= np.array([kind != OPERATOR for kind in modules.kind], dtype=bool)
    fits = called & (launching > 1) & (waiting == 0)
    above = np.zeros(fits.size, dtype=bool)
    for row, parent in enumerate(modules.parent.tolist()):
        above[row] = parent >= 0 and (above[parent] or fits[parent])
    outermost = np.flatnonzero(fits & ~above)
    for module, own in steps.by_pattern(outermost):
        yield _candidate(steps, module, outermost[own], idle)


def _subtree(steps: StepRows, module: Rows) -> Ints:
    """How many rows each module has with all below it."""
    return steps.modules.subtree_sums(np.bincount(module[module >= 0], minlength=len(steps.modules.path)))


def _candidate(steps: StepRows, module: str | None, rows: Rows, idle: int) -> Candidate:
    chosen = np.zeros(len(steps.modules.path) + 1, dtype=bool)
    chosen[rows] = True
    events = np.flatnonzero(_inside(steps, chosen))
    events = events[steps.counted(events)]
    code = steps.code[events]
    most = steps.per_step(int((steps.events.end - steps.events.start)[events].sum() + code.sum()))
    kernels = steps.work.kernel[steps.launched[events[steps.launched[events] >= 0]]]
    evidence = steps.evidence("kernels", kernels, "launches", rows)
    return Candidate(module, min(most, idle), partial(_as_graph, chosen), evidence, _ADVICE)


def _inside(steps: StepRows, chosen: Flags) -> Flags:
    """Which events lie in calls of modules."""
    inside = np.zeros(steps.events.start.size, dtype=bool)
    own = chosen[steps.calls.module]
    for thread in np.unique(steps.calls.thread[own]).tolist():
        rows = np.flatnonzero(steps.events.thread == thread)
        calls = own & (steps.calls.thread == thread)
        time = covered(steps.calls.start[calls], steps.calls.end[calls])
        inside[rows] = time.until(steps.events.end[rows]) > time.until(steps.events.start[rows])
    return inside


def _as_graph(chosen: Flags, changing: Changing) -> None:
    changing.as_graph(chosen)
    tasks, work = changing.tasks, changing.found.work
    follows = np.flatnonzero((tasks.before >= 0) & (tasks.event == np.append(tasks.event, -1)[tasks.before]))
    follows = follows[(tasks.event[follows] >= 0) & ~work.from_replay[follows] & (tasks.order[follows] == 0)]
    apart = work.start[follows] - work.end[tasks.before[follows]]
    order = tasks.order.copy()
    order[follows] = np.clip(apart, 0, _BETWEEN_NODES_NS)
    changing.tasks = replace(tasks, order=order)
