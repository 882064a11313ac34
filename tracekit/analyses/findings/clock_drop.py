"""The device runs all kernels slower in a part of the recording: its clocks fell."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import shortened
from tracekit.arrays.groups import counts, grouped, sums
from tracekit.arrays.types import Flags, Ints, Rows

Floats: TypeAlias = NDArray[np.float64]
NAME = "clock_drop"
_ADVICE = (
    "In {count} of {all} steps nearly all kernels take about {ratio:.2f} times as long as the same ones in others. "
    "Look at clocks, power and temperature with nvidia-smi -q -d CLOCK,PERFORMANCE, and fix the clocks (-lgc)."
)
#: How many times as long kernels take in a step with lower clocks; which share of their time must agree within what.
_SLOW, _AGREEING, _WITHIN = 1.08, 0.8, 0.07
#: How many steps there must be, how many different kernels in each, and how many slow steps in a row on average: clocks
#: fall for a while, whereas steps that are slow in turns have more work.
_LEAST_STEPS, _LEAST_KINDS, _IN_A_ROW = 4, 4, 3


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """The steps in which all kernels of a device are slower."""
    work = steps.work
    rows = np.flatnonzero((steps.step >= 0) & ~work.collective & (steps.bytes < 0) & (work.end > work.start))
    if np.unique(steps.step[rows]).size < _LEAST_STEPS:
        return
    lasts = (work.end - work.start)[rows]
    kind, _ = grouped((work.context[rows], work.module[rows], work.name[rows], steps.column("grid_x")[rows]))
    place, first = grouped((work.context[rows], steps.step[rows]))
    alike, _ = grouped((kind, _occurrence(kind, place)))
    ratio, agreeing = _ratios(lasts, _best(alike, lasts), place)
    kinds = np.bincount(np.unique(np.stack([place, kind]), axis=1)[0])
    slow = (ratio > _SLOW) & (agreeing > _AGREEING) & (kinds >= _LEAST_KINDS)
    if slow.any() and slow.sum() >= _IN_A_ROW * _stretches(slow, work.context[rows][first]):
        own = np.flatnonzero(slow[place])
        factors = np.ones(work.start.size)
        factors[rows[own]] = 1 / ratio[place[own]]
        spared = int((lasts[own] * (1 - factors[rows[own]])).sum())
        advice = _ADVICE.format(count=int(slow.sum()), all=slow.size, ratio=float(np.median(ratio[slow])))
        ids = np.unique(steps.step[rows][first[slow]])
        edit = partial(shortened, work=factors, calls=np.ones(steps.events.start.size))
        yield Candidate(None, steps.per_step(spared), edit, steps.evidence("steps", ids, "steps"), advice)


def _stretches(slow: Flags, context: Rows) -> int:
    """How many times steps begin to be slow on a device."""
    goes_on = slow[1:] & slow[:-1] & (context[1:] == context[:-1])
    return int(slow.sum() - goes_on.sum())


def _occurrence(kind: Rows, place: Rows) -> Ints:
    """Of each kernel how many of its kind ran before it at the same place, as a module may run one on several sizes."""
    order = np.lexsort((kind, place))
    number = np.arange(order.size)
    fresh = np.append(True, (np.diff(kind[order]) != 0) | (np.diff(place[order]) != 0))[: order.size]
    occurrence = np.empty(order.size, np.int64)
    occurrence[order] = number - np.maximum.accumulate(np.where(fresh, number, 0))
    return occurrence


def _best(kind: Rows, lasts: Ints) -> Ints:
    """How long the fastest quarter of kernels of the same kind takes."""
    number = counts(kind, int(kind.max()) + 1)
    ordered = lasts[np.lexsort((lasts, kind))]
    best: Ints = ordered[np.cumsum(number) - number + (number - 1) // 4][kind]
    return best


def _ratios(lasts: Ints, best: Ints, place: Rows) -> tuple[Floats, Floats]:
    """How many times as long as at best kernels take at each place, and in which share of that time about as many."""
    size = int(place.max()) + 1
    whole = np.maximum(1, sums(place, best, size))
    ratio = sums(place, lasts, size) / whole
    agrees = np.abs(lasts / np.maximum(1, best) / ratio[place] - 1) < _WITHIN
    return ratio, sums(place, np.where(agrees, best, 0), size) / whole
