"""Layers of one kind and size of which a few take longer on the device than the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.subtrees import series
from tracekit.analyses.whatif.edits import shortened
from tracekit.arrays.codes import codes
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, maxima, minima, sums
from tracekit.arrays.types import Ints, Rows

NAME = "unlike_layers"
_ADVICE = (
    "{few} of {all} layers of one kind and size differ: {path} takes {ratio:.1f} times as long as the median layer. "
    "Compare its kernels with those of another one: another dtype or layout, a fallback, or work of its own."
)
#: So many layers must be of one kind; how many times the median a layer must take; which share of them may; and by
#: which share of the median the others may differ, which run as many kernels each.
_LEAST_LAYERS, _SLOW, _FEW, _ALIKE = 3, 1.2, 0.34, 0.1


class _Time(NamedTuple):
    """The time of every module with all below it: on the device, and of the host in calls of CUDA and code before.

    Attributes:
        kernels: How many kernels these are.
    """

    device: Ints
    host: Ints
    kernels: Ints


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """The slow layers of each series; of series in each other the outer ones."""
    modules, time, seen = steps.modules, _time(steps), np.zeros(len(steps.modules.path), dtype=bool)
    for rows in _alike(steps):
        usual = np.median(time.device[rows])
        slow = rows[time.device[rows] > _SLOW * usual]
        others = np.setdiff1d(rows, slow)
        alike = np.abs(time.device[others] - usual).max() <= _ALIKE * usual and np.ptp(time.kernels[others]) == 0
        if slow.size and slow.size <= _FEW * rows.size and alike and not seen[slow].any():
            for row in slow.tolist():
                seen[row : int(modules.end[row])] = True
            yield _candidate(steps, time, rows, slow)


def _time(steps: StepRows) -> _Time:
    work, events, size = steps.work, steps.events, len(steps.modules.path)
    ran = np.flatnonzero(steps.in_step & (work.module >= 0) & ~work.collective)
    called = np.flatnonzero((events.module >= 0) & steps.counted(np.arange(events.module.size)))
    device = sums(work.module[ran], (work.end - work.start)[ran], size)
    host = sums(events.module[called], (events.end - events.start)[called] + steps.code[called], size)
    return _Time(*map(steps.modules.subtree_sums, (device, host, counts(work.module[ran], size))))


def _alike(steps: StepRows) -> Iterator[Rows]:
    """Layers of one series with the same classes, parameters and shapes of inputs."""
    modules, groups = steps.modules, dict[tuple[object, ...], list[int]]()
    kinds, inputs = _kinds(steps), _inputs(steps)
    for row, name in enumerate(series(modules)):
        if name is not None:
            key = steps.patterns[row], kinds[row], *(int(column[row]) for column in inputs)
            groups.setdefault(key, []).append(row)
    yield from (np.array(rows) for rows in groups.values() if len(rows) >= _LEAST_LAYERS)


def _kinds(steps: StepRows) -> list[int]:
    """A number for what each module is with all below it: classes and parameters."""
    modules = steps.modules
    params = steps.dataset.table("modules", ["params"]).column("params").to_pylist()
    below: list[list[tuple[str, int]]] = [[] for _ in modules.path]
    kinds, known = [0] * len(modules.path), dict[tuple[object, ...], int]()
    for row in range(len(modules.path) - 1, -1, -1):
        key = modules.class_name[row], str(params[row]), *below[row]
        kinds[row] = known.setdefault(key, len(known))
        if (parent := int(modules.parent[row])) >= 0:
            below[parent].append((modules.name[row], kinds[row]))
    return kinds


def _inputs(steps: StepRows) -> tuple[Ints, Ints]:
    table = steps.dataset.table("calls", ["module_id", "inputs"])
    shapes = codes(table.column("inputs").combine_chunks())
    rows, size = steps.modules.rows(table), len(steps.modules.path)
    return minima(rows, shapes, size), maxima(rows, shapes, size)


def _candidate(steps: StepRows, time: _Time, rows: Rows, slow: Rows) -> Candidate:
    usual = [float(np.median(column[rows])) for column in time[:2]]
    work, calls = np.ones(steps.work.start.size), np.ones(steps.events.start.size)
    spared = 0.0
    for row in slow.tolist():
        factors = [min(1.0, own / max(1, int(column[row]))) for own, column in zip(usual, time[:2], strict=True)]
        spared += sum((1 - factor) * column[row] for factor, column in zip(factors, time[:2], strict=True))
        for module, factor, changed in (
            (steps.work.module, factors[0], work),
            (steps.events.module, factors[1], calls),
        ):
            changed[(module >= row) & (module < steps.modules.end[row])] = factor
    slowest = int(slow[time.device[slow].argmax()])
    advice = _ADVICE.format(
        few=slow.size, all=rows.size, path=steps.modules.path[slowest], ratio=time.device[slowest] / usual[0]
    )
    ids = integers(steps.dataset.table("modules", ["module_id"]), "module_id")[slow]
    where = steps.modules.path[slowest] if slow.size == 1 else steps.patterns[slowest]
    work[steps.work.collective] = 1
    edit = partial(shortened, work=work, calls=calls)
    return Candidate(where, steps.per_step(int(spared)), edit, steps.evidence("modules", ids, "layers"), advice)
