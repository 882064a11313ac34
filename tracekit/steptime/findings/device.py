"""What the device does: kernels that could be fused, faster or like others, and work that begins late."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import series
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, maxima, minima, sums
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.flops.peaks import gpu_named
from tracekit.steptime.findings.rows import Candidate, StepRows
from tracekit.steptime.whatif.changes import HELD_NS, Changing, shortened, without
from tracekit.steptime.whatif.model import Tasks

_LEAST_CHAIN = 3
#: Names of kernels of cuBLAS, cuDNN and CUTLASS without tensor cores; those on them are ``s1688gemm`` or ``tf32``.
_WITHOUT = re.compile(r"(?<![a-z])sgemm|simt|_ffma|gemmsn|sgemm_", re.IGNORECASE)
#: Clocks: how many times as long kernels take in a step with lower ones; which share of their time must agree within
#: what; how many steps there must be, how many different kernels in each, and how many slow steps in a row on average:
#: clocks fall for a while, whereas steps that are slow in turns have more work.
_SLOWER, _AGREEING, _WITHIN, _LEAST_STEPS, _LEAST_KINDS, _IN_A_ROW = 1.08, 0.8, 0.07, 4, 4, 3
#: Layers: so many must be of one kind; how many times the median one must take; which share of them may; and by which
#: share of the median the others may differ, which run as many kernels each.
_LEAST_LAYERS, _SLOW, _FEW, _ALIKE = 3, 1.2, 0.34, 0.1
#: Work that is held begins so many times as late as usual.
_LATER = 5


def elementwise_chain(steps: StepRows) -> Iterator[Candidate]:
    """Kernels of chains, but for the longest of each chain, by module."""
    chains = _chains(steps)
    rows = np.flatnonzero((chains >= 0) & steps.in_step)
    length = np.bincount(chains[rows], minlength=1)
    rows = rows[length[chains[rows]] >= _LEAST_CHAIN]
    for module, own in steps.by_pattern(steps.work.module[rows]):
        yield _chain(steps, module, rows[own], chains)


def _chains(steps: StepRows) -> Rows:
    """The number of the chain of each kernel: those that follow each other on a stream, in one call; else -1."""
    work = steps.work
    words = np.array(["elementwise" in name.lower() for name in work.names] + [False])
    fits = words[work.name] & (steps.call >= 0)
    before = np.where(work.before >= 0, work.before, 0)
    joins = fits & (work.before >= 0) & fits[before] & (steps.call[before] == steps.call)
    order = np.lexsort((work.start, work.stream))
    number = np.empty(order.size, np.int64)
    number[order] = np.cumsum(~joins[order])
    return np.where(fits, number, -1)


def _chain(steps: StepRows, module: str | None, rows: Rows, chains: Rows) -> Candidate:
    lasts = (steps.work.end - steps.work.start)[rows]
    _, chain = np.unique(chains[rows], return_inverse=True)
    longest = lasts == maxima(chain, lasts, int(chain.max()) + 1)[chain]
    kept = np.flatnonzero(longest)
    kept = kept[np.unique(chain[kept], return_index=True)[1]]
    removal = steps.removal(np.delete(rows, kept), "all")
    evidence = steps.evidence("kernels", steps.work.kernel[rows], "module_kernels", steps.work.module[rows])
    text = steps.advice("elementwise_chain")
    return Candidate(module, steps.per_step(removal.ns), partial(without, removal=removal), evidence, text)


def below_roof(steps: StepRows) -> Iterator[Candidate]:
    """Such kernels by module; at most they become as much faster as tensor cores are."""
    share, names = _share(steps), steps.words("full_name")
    without = [at for at, name in enumerate(names.words) if _WITHOUT.search(name)]
    rows = np.flatnonzero(np.isin(names.code, without) & steps.in_step)
    if share is None or not rows.size:
        return
    for module, own in steps.by_pattern(steps.work.module[rows]):
        factors = np.ones(steps.work.start.size)
        factors[rows[own]] = share
        spared = (1 - share) * (steps.work.end - steps.work.start)[rows[own]].sum()
        kernels, modules = steps.work.kernel[rows[own]], steps.work.module[rows[own]]
        evidence = steps.evidence("kernels", kernels, "module_kernels", modules)
        edit = partial(shortened, work=factors, calls=np.ones(steps.events.start.size))
        yield Candidate(module, steps.per_step(int(spared)), edit, evidence, steps.advice("below_roof"))


def _share(steps: StepRows) -> float | None:
    """How long products take on tensor cores, as a share of the time without; of several devices the least."""
    names = [str(device["name"]) for entry in steps.dataset.entries for device in entry["devices"]]
    gpus = [gpu for gpu in map(gpu_named, names) if gpu is not None]
    known = [gpu.tflops["float32"] / gpu.tflops["tfloat32"] for gpu in gpus if "tfloat32" in gpu.tflops]
    return min((share for share in known if share < 1), default=None)


def clock_drop(steps: StepRows) -> Iterator[Candidate]:
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
    slow = (ratio > _SLOWER) & (agreeing > _AGREEING) & (kinds >= _LEAST_KINDS)
    goes_on = slow[1:] & slow[:-1] & (np.diff(work.context[rows][first]) == 0)
    if slow.any() and slow.sum() >= _IN_A_ROW * (slow.sum() - goes_on.sum()):
        own = np.flatnonzero(slow[place])
        factors = np.ones(work.start.size)
        factors[rows[own]] = 1 / ratio[place[own]]
        spared = int((lasts[own] * (1 - factors[rows[own]])).sum())
        text = steps.advice("clock_drop", count=int(slow.sum()), all=slow.size, ratio=float(np.median(ratio[slow])))
        ids = np.unique(steps.step[rows][first[slow]])
        edit = partial(shortened, work=factors, calls=np.ones(steps.events.start.size))
        yield Candidate(None, steps.per_step(spared), edit, steps.evidence("steps", ids, "steps"), text)


def _occurrence(kind: Rows, place: Rows) -> Ints:
    """How many of a kernel's kind ran before it at the same place: a module may run one on several sizes."""
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


class _Time(NamedTuple):
    """The time of every module with all below it: on the device, and of the host in CUDA calls and code before.

    Attributes:
        kernels: How many kernels these are.
    """

    device: Ints
    host: Ints
    kernels: Ints


def unlike_layers(steps: StepRows) -> Iterator[Candidate]:
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
            yield _unlike(steps, time, rows, slow)


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
    """For each module, the smallest and the largest number in a shape of its inputs."""
    parts, shapes = [], []
    for part in steps.dataset.by_report():
        table = part.table("calls", ["module_id", "inputs"])
        rows, inputs = steps.modules.rows(table), table.column("inputs").combine_chunks()
        _, first = np.unique(joint([rows + 1, codes(inputs)]), return_index=True)
        parts.append(rows[first])
        shapes.append(inputs.take(pa.array(first)))
    rows, shape, size = np.concatenate(parts), codes(pa.concat_arrays(shapes)), len(steps.modules.path)
    return minima(rows, shape, size), maxima(rows, shape, size)


def _unlike(steps: StepRows, time: _Time, rows: Rows, slow: Rows) -> Candidate:
    usual = [float(np.median(column[rows])) for column in time[:2]]
    work, calls = np.ones(steps.work.start.size), np.ones(steps.events.start.size)
    spared = 0.0
    for row in slow.tolist():
        factors = [min(1.0, own / max(1, int(column[row]))) for own, column in zip(usual, time[:2], strict=True)]
        spared += sum((1 - factor) * column[row] for factor, column in zip(factors, time[:2], strict=True))
        pairs = zip((steps.work.module, steps.events.module), factors, (work, calls), strict=True)
        for module, factor, changed in pairs:
            changed[(module >= row) & (module < steps.modules.end[row])] = factor
    slowest = int(slow[time.device[slow].argmax()])
    path, ratio = steps.modules.path[slowest], time.device[slowest] / usual[0]
    text = steps.advice("unlike_layers", few=slow.size, all=rows.size, path=path, ratio=ratio)
    ids = integers(steps.dataset.table("modules", ["module_id"]), "module_id")[slow]
    where = path if slow.size == 1 else steps.patterns[slowest]
    work[steps.work.collective] = 1
    edit = partial(shortened, work=work, calls=calls)
    return Candidate(where, steps.per_step(int(spared)), edit, steps.evidence("modules", ids, "layers"), text)


def shared_gpu(steps: StepRows) -> Iterator[Candidate]:
    """Work that was launched, waited for no recorded work, and still began late."""
    tasks, work = steps.model.changing().tasks, steps.work
    blocks = np.append(steps.events.blocks, False)[tasks.event]
    # The launch of a graph may go on after it returned; copies and streams of their own wait for what is not recorded.
    fits = steps.in_step & ~work.collective & ~work.from_replay & ~blocks & steps.model.knows_dependencies
    fits &= (steps.bytes < 0) & (work.before >= 0) & (work.start - work.end[work.before] > HELD_NS)
    late, usual, spared = [], [], 0
    for lag, known in _lags(tasks):
        usual.append(int(np.median(lag[known])) if known.any() else 0)
        late.append(np.flatnonzero(fits & known & (lag > max(HELD_NS, _LATER * usual[-1]))))
        spared += int((lag[late[-1]] - usual[-1]).sum())
    rows = np.union1d(*late)
    if rows.size:
        evidence = steps.evidence("kernels", work.kernel[rows], "budget")
        text = steps.advice("shared_gpu", count=rows.size)
        yield Candidate(None, steps.per_step(spared), partial(_at_once, late=late, usual=usual), evidence, text)


def _lags(tasks: Tasks) -> list[tuple[Ints, Flags]]:
    """How long after its launch, and after the work before it, work begins; and of which work that is known."""
    return [(tasks.launch, tasks.event >= 0), (tasks.order, tasks.before >= 0)]


def _at_once(changing: Changing, late: list[Rows], usual: list[int]) -> None:
    lags = [changing.tasks.launch.copy(), changing.tasks.order.copy()]
    for lag, rows, often in zip(lags, late, usual, strict=True):
        lag[rows] = often
    changing.tasks = replace(changing.tasks, launch=lags[0], order=lags[1])
