"""What devices do: kernels that could be fused, faster or like others, late work, copies, and waiting for ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import series
from tracekit.arrays.codes import codes, joint, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, maxima, minima, sums
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.flops.peaks import gpu_named
from tracekit.ranks.collectives import communication
from tracekit.steptime.findings.advice import CAST, COPIED, MOVING, STEADILY
from tracekit.steptime.findings.rows import Candidate, StepRows
from tracekit.steptime.own_times import RANK_TIMES
from tracekit.steptime.whatif.changes import HELD_NS, Changing, Removal
from tracekit.steptime.whatif.model import Tasks, arrivals

#: The advice for operations that are no reductions or gathers. What NCCL groups as send_recv is an all-to-all where
#: the path of its module says so.
_OPERATIONS = dict.fromkeys(("all_to_all", "dispatch", "combine"), "all_to_all")
_OPERATIONS |= dict.fromkeys(("send", "recv", "send_recv"), "send")
_ALL_TO_ALL = re.compile("all_?to_?all|all2all|a2a", re.IGNORECASE)
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
#: Work that is held begins so many times as late as usual; so many steps must have the same copy.
_LATER, _LEAST_COPIES = 5, 3


def elementwise_chain(steps: StepRows) -> Iterator[Candidate]:
    """Kernels that follow each other on a stream in one call, but for the longest of each such chain, by module."""
    work, lasts = steps.work, steps.work.end - steps.work.start
    words = np.array(["elementwise" in name.lower() for name in work.names] + [False])
    fits = words[work.name] & (steps.call >= 0)
    before = np.maximum(work.before, 0)
    joins = fits & (work.before >= 0) & fits[before] & (steps.call[before] == steps.call)
    order = np.lexsort((work.start, work.stream))
    chain = np.empty(order.size, np.int64)
    chain[order] = np.cumsum(~joins[order])
    rows = np.flatnonzero(fits & steps.in_step)
    length = np.bincount(chain[rows], minlength=1)
    rows = rows[length[chain[rows]] >= _LEAST_CHAIN]
    for module, places in steps.by_pattern(work.module[rows]):
        own = rows[places]
        longest_first = own[np.lexsort((-lasts[own], chain[own]))]
        others = longest_first[1:][np.diff(chain[longest_first]) == 0]
        removal = steps.removal(np.sort(others), all_code=True)
        evidence = steps.evidence("kernels", work.kernel[own], "module_kernels", work.module[own])
        text = steps.advice("elementwise_chain")
        yield Candidate(module, steps.per_step(removal.ns), partial(Changing.without, removal=removal), evidence, text)


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
        edit = partial(Changing.shortened, work=factors)
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
    number = counts(alike, int(alike.max()) + 1)
    # How long the fastest quarter of kernels of the same kind takes.
    best = lasts[np.lexsort((lasts, alike))][np.cumsum(number) - number + (number - 1) // 4][alike]
    ratio, agreeing = _ratios(lasts, best, place)
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
        evidence = steps.evidence("steps", ids, "steps")
        yield Candidate(None, steps.per_step(spared), partial(Changing.shortened, work=factors), evidence, text)


def _occurrence(kind: Rows, place: Rows) -> Ints:
    """How many of a kernel's kind ran before it at the same place: a module may run one on several sizes."""
    group = grouped((place, kind)).group
    order, occurrence = np.argsort(group, kind="stable"), np.empty(group.size, np.int64)
    occurrence[order] = np.arange(order.size) - np.searchsorted(group[order], group[order])
    return occurrence


def _ratios(lasts: Ints, best: Ints, place: Rows) -> tuple[Floats, Floats]:
    """How many times as long as at best kernels take at each place, and in which share of that time about as many."""
    size = int(place.max()) + 1
    whole = np.maximum(1, sums(place, best, size))
    ratio = sums(place, lasts, size) / whole
    agrees = np.abs(lasts / np.maximum(1, best) / ratio[place] - 1) < _WITHIN
    return ratio, sums(place, np.where(agrees, best, 0), size) / whole


def unlike_layers(steps: StepRows) -> Iterator[Candidate]:
    """The slow layers of each series; of series in each other the outer ones."""
    work, events, modules, size = steps.work, steps.events, steps.modules, len(steps.modules.path)
    ran = np.flatnonzero(steps.in_step & (work.module >= 0) & ~work.collective)
    called = np.flatnonzero((events.module >= 0) & steps.counted(np.arange(events.module.size)))
    of_work = sums(work.module[ran], (work.end - work.start)[ran], size)
    of_calls = sums(events.module[called], (events.end - events.start)[called] + steps.code[called], size)
    # Of every module with all below it: the time on the device, that in CUDA calls and code before, and kernels.
    device, host, kernels = map(modules.subtree_sums, (of_work, of_calls, counts(work.module[ran], size)))
    seen = np.zeros(size, dtype=bool)
    for rows in _alike(steps):
        usual = np.median(device[rows])
        slow = rows[device[rows] > _SLOW * usual]
        others = np.setdiff1d(rows, slow)
        alike = np.abs(device[others] - usual).max() <= _ALIKE * usual and np.ptp(kernels[others]) == 0
        if slow.size and slow.size <= _FEW * rows.size and alike and not seen[slow].any():
            for row in slow.tolist():
                seen[row : int(modules.end[row])] = True
            yield _unlike(steps, (device, host), rows, slow)


def _alike(steps: StepRows) -> Iterator[Rows]:
    """Layers of one series with the same classes, parameters and shapes of inputs."""
    modules, groups, parts, shapes = steps.modules, dict[tuple[object, ...], list[int]](), [], []
    for part in steps.dataset.by_report():
        table = part.table("calls", ["module_id", "inputs"])
        rows, inputs = modules.rows(table), table.column("inputs").combine_chunks()
        _, first = np.unique(joint([rows + 1, codes(inputs)]), return_index=True)
        parts.append(rows[first])
        shapes.append(inputs.take(pa.array(first)))
    rows, shape, size = np.concatenate(parts), codes(pa.concat_arrays(shapes)), len(modules.path)
    least, most = minima(rows, shape, size), maxima(rows, shape, size)
    params = steps.dataset.table("modules", ["params"]).column("params").to_pylist()
    kinds = [*zip(modules.class_name, map(str, params), strict=True)]
    for row, name in enumerate(series(modules)):
        if name is not None:
            below = tuple(kinds[row : int(modules.end[row])])
            groups.setdefault((steps.patterns[row], below, int(least[row]), int(most[row])), []).append(row)
    yield from (np.array(rows) for rows in groups.values() if len(rows) >= _LEAST_LAYERS)


def _unlike(steps: StepRows, times: tuple[Ints, Ints], rows: Rows, slow: Rows) -> Candidate:
    usual = [float(np.median(column[rows])) for column in times]
    work, calls = np.ones(steps.work.start.size), np.ones(steps.events.start.size)
    spared = 0.0
    for row in slow.tolist():
        factors = [min(1.0, own / max(1, int(column[row]))) for own, column in zip(usual, times, strict=True)]
        spared += sum((1 - factor) * column[row] for factor, column in zip(factors, times, strict=True))
        pairs = zip((steps.work.module, steps.events.module), factors, (work, calls), strict=True)
        for module, factor, changed in pairs:
            changed[(module >= row) & (module < steps.modules.end[row])] = factor
    slowest = int(slow[times[0][slow].argmax()])
    path, ratio = steps.modules.path[slowest], times[0][slowest] / usual[0]
    text = steps.advice("unlike_layers", few=slow.size, all=rows.size, path=path, ratio=ratio)
    ids = integers(steps.dataset.table("modules", ["module_id"]), "module_id")[slow]
    where = path if slow.size == 1 else steps.patterns[slowest]
    work[steps.work.collective] = 1
    edit = partial(Changing.shortened, work=work, calls=calls)
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
    launch, order = changing.tasks.launch.copy(), changing.tasks.order.copy()
    for lag, rows, often in zip((launch, order), late, usual, strict=True):
        lag[rows] = often
    changing.tasks.launch, changing.tasks.order = launch, order


def pageable_copy(steps: StepRows) -> Iterator[Candidate]:
    """Copies to the device that block as the host memory is not pinned, by module."""
    events, uploads = steps.events, np.flatnonzero(steps.uploads)
    uploads = uploads[steps.counted(uploads)]
    for module, own in steps.by_pattern(events.module[uploads]):
        rows = uploads[own]
        work, after = steps.launched[rows], steps.after[rows]
        awaited = (after >= 0) & (steps.wait_kind[after] == "synchronize")
        removal = steps.removed(after[awaited], rows[:0])
        lasts = (steps.work.end - steps.work.start)[work]
        most = steps.per_step(removal.ns + int((events.end - events.start)[rows].sum() + lasts.sum()))
        following = np.where(awaited, steps.after[after], after)
        uses = (following >= 0) & (steps.launched[following] >= 0)
        uses &= steps.event_step[following] == steps.event_step[rows]
        users = steps.launched[following[uses]], work[uses]
        edit = partial(_pinned, copies=counts(rows, events.start.size) > 0, after=removal, users=users)
        evidence = steps.evidence("kernels", steps.work.kernel[work], "copies", events.module[rows])
        yield Candidate(module, most, edit, evidence, steps.advice("pageable_copy"))


def _pinned(changing: Changing, copies: Flags, after: Removal, users: tuple[Rows, Rows]) -> None:
    """Copies no longer block, but what their step launches next still waits for them if it did, on any stream."""
    changing.without_sync(copies)
    changing.without(after)
    changing.tasks.depend(*users)


def repeated_copy(steps: StepRows) -> Iterator[Candidate]:
    """Copies from the host that do not block, and casts, inside modules that every step has, by module."""
    copies = steps.copied("host-to-device")[:-1] & ~np.append(steps.events.blocks, False)[steps.work.event]
    names = steps.words("full_name")
    other_dtypes = [names.containing(text) for text in ("withcast", "float16_copy", "float8", "float4")]
    casts = np.isin(names.code, np.intersect1d(names.containing("copy_kernel"), np.concatenate(other_dtypes)))
    grid, every = steps.column("grid_x"), np.unique(steps.step[steps.step >= 0]).size
    for chosen, question, text in ((copies, "copies", COPIED), (casts, "module_kernels", CAST)):
        rows = np.flatnonzero(chosen & (steps.work.module >= 0) & (steps.step >= 0))
        # Those that every step has in the same module, with the same name and size.
        alike = grouped((steps.work.module[rows], steps.work.name[rows], steps.bytes[rows], grid[rows])).group
        number = np.bincount(np.unique(np.stack([alike, steps.step[rows]]), axis=1)[0], minlength=1)
        rows = rows[number[alike] >= max(_LEAST_COPIES, every)]
        for module, own in steps.by_pattern(steps.work.module[rows]):
            removal = steps.removal(rows[own])
            evidence = steps.evidence("kernels", steps.work.kernel[rows[own]], question, steps.work.module[rows[own]])
            yield Candidate(
                module, steps.per_step(removal.ns), partial(Changing.without, removal=removal), evidence, text
            )


def exposed_communication(steps: StepRows) -> Iterator[Candidate]:
    """All collectives that run while nothing computes at once; the module is the one with most exposed time."""
    time = np.zeros(steps.work.kernel.size, np.int64)
    for part in steps.dataset.by_report():
        work, _, exposed = communication(part, ["kernel_id"])
        time += lookup(exposed, positions(steps.work.kernel, work.kernel_id), 0)
    rows = np.flatnonzero((time > 0) & steps.in_step)
    tasks = steps.model.changing().tasks
    unproven = tasks.meeting[rows] < 0
    # How much of a collective is waiting for a slow rank cannot be known if its ranks are not.
    if rows.size and not (steps.ranks.slow and unproven.any()):
        evidence = steps.evidence("kernels", steps.work.kernel[rows], "communication")
        words, module = steps.words("collective"), _leading(steps, rows, time[rows])
        longest = int(sums(words.code[rows] + 1, time[rows], len(words.words) + 1).argmax()) - 1
        name = _OPERATIONS.get(words.words[longest] if longest >= 0 else "", "all_reduce")
        name = "all_to_all" if name == "send" and _ALL_TO_ALL.search(module or "") else name
        text = steps.advice("exposed_communication", how=steps.advice(name))
        most, meets = steps.per_step(int(time[rows].sum())), steps.ranks.meets_ns[steps.ranks.steps > 0]
        # What others are in collectives for longer than the rank with the least of it is waiting for that.
        most = min(most, float(meets.min())) if meets.size > 1 else most
        most += steps.per_step(int(np.maximum(tasks.order[rows], 0).sum()))
        yield Candidate(module, most, Changing.overlap_communication, evidence, text)


def _leading(steps: StepRows, rows: Rows, time: Ints) -> str | None:
    """The module with most of some time."""
    by_module = sums(steps.work.module[rows] + 1, time, len(steps.patterns))
    return steps.patterns[int(by_module.argmax()) - 1]


def straggler(steps: StepRows) -> Iterator[Candidate]:
    """Ranks that work longer than the others; without any, all waiting for other ranks at once."""
    if not (steps.work.line.any() or RANK_TIMES in steps.dataset.known_of_all):
        return  # one process on one device, and nothing is known of others
    times = steps.ranks
    if saved := times.held_up_ns():
        slowest, *more = times.slow
        module, evidence = times.most_apart[0][slowest], steps.evidence("kernels", np.zeros(0, np.int64), "ranks")
        names = " and ".join([times.name(slowest), *([f"{len(more)} more"] if more else [])])
        where = module or "code outside modules"
        text = STEADILY.format(who=names, share=times.apart[slowest], since=times.since_step(slowest), where=where)
        yield Candidate(module, saved, None, evidence, text)
        return
    meeting, work = steps.model.changing().tasks.meeting, steps.work
    rows = np.flatnonzero((meeting >= 0) & steps.in_step)
    waited = arrivals(meeting, work.start)[meeting[rows]] - work.start[rows]
    rows, waited = rows[waited > 0], waited[waited > 0]
    if rows.size:
        evidence = steps.evidence("kernels", work.kernel[rows], "stragglers")
        most = steps.per_step(int(waited.sum()))
        yield Candidate(_leading(steps, rows, waited), most, Changing.without_meetings, evidence, MOVING, fastest=True)
