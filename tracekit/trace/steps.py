"""Steps: marked ones, those of training, or for processes without either the calls that lead each loop.

A step of training lasts from the end of one optimizer step to the end of the next. Several forward passes (gradient
accumulation) are one step, and so are several optimizers that take turns (a GAN's): a step ends with the last of them
before the one that leads, the one that steps most often, steps again. Where one loop follows another, each has its own
leader. Evaluation in between is in no step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import distinct, grouped, mixed
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import CAUSES, MODULE_UNCLEAR, STEP_AROUND_STEPS, STEPS_UNCLEAR
from tracekit.markers.base import ModuleMarker, StepMarker
from tracekit.markers.phases import AFTER_EVALUATION, AFTER_NO_GRAD, AFTER_UPDATE, BACKWARD, DATA, OPTIMIZER
from tracekit.recording.tables import Recording
from tracekit.trace.calls.call_ends import RangeEnds
from tracekit.trace.calls.calls import Calls
from tracekit.trace.decoding import Decoded
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT
from tracekit.trace.hierarchy_keys import HierarchyKey
from tracekit.trace.loops import Outermost, is_part, led_steps
from tracekit.trace.phases import Phased


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in the order of their starts; ``step_id`` is the row.

    Attributes:
        markers: Marker of the step; a step made from calls of a root module has only a name.
        apart: Threads that never work for a step of another thread, but in its parts.
        parts: Ranges of other threads that are parts of steps.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    process: Ints
    markers: list[StepMarker]
    apart: Ints
    parts: Parts


class Parts(NamedTuple):
    """Ranges of other threads that are parts of steps; ``step`` is -1 for those of steps that are not known."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    step: Ints


def steps_of(
    recording: Recording, keyed: HierarchyKey, calls: Calls, ends: RangeEnds, phased: Phased, phase: Ints
) -> Steps:
    """The steps of each process: marked ones, else those of its optimizers, else what it calls by turns.

    ``calls`` are those of modules only; ``phase`` is that of every launch.
    """
    decoded, process = keyed.decoded, recording.threads.process
    start, end = recording.ranges.start_ns, ends.end_ns
    thread = recording.ranges.thread
    called, doubtful = _outermost_calls(recording, decoded, calls, ends)
    marked, markers = _marked_steps(recording, keyed, calls, ends, called)
    marking = np.unique(process[thread[marked]])
    trained = training_steps(phased.at(~np.isin(process[phased.thread], marking)), called)
    training = np.unique(process[np.append(trained.thread, trained.unclear)])
    unclear = np.isin(called.thread, trained.unclear)
    recording.counters.add("calls", STEPS_UNCLEAR, int(unclear.sum()))
    known = np.union1d(marking, training)
    without = np.isin(called.process, np.setdiff1d(doubtful, known))
    recording.counters.add("calls", STEPS_UNCLEAR, int(without.sum()))
    pending = np.setdiff1d(called.process, np.union1d(marking, doubtful))
    first, last, names, apart = _led(recording, decoded, calls, called, (pending.tolist(), training))
    rows = np.concatenate((marked, first))
    markers = [*markers, *map(StepMarker, names), *[StepMarker(TRAIN, TRAIN)] * trained.thread.size]
    start = np.concatenate((start[rows], trained.start_ns))
    end = np.concatenate((end[marked], end[last], trained.end_ns))
    thread = np.concatenate((thread[rows], trained.thread))
    order = np.lexsort((np.append(rows, np.arange(trained.thread.size)), process[thread], start))
    apart = np.setdiff1d(apart, phased.thread[phased.code == BACKWARD])
    markers = [markers[row] for row in order.tolist()]
    part = np.array([*keyed.step_parts], dtype=np.int64)
    step_of = {row: step for step, row in enumerate(np.append(rows, np.full(trained.thread.size, -1))[order].tolist())}
    step = np.array([step_of.get(row, -1) if row >= 0 else -1 for row in keyed.step_parts.values()], dtype=np.int64)
    parts = Parts(recording.ranges.start_ns[part], ends.end_ns[part], recording.ranges.thread[part], step)
    apart = np.union1d(apart, parts.thread)
    steps = Steps(start[order], end[order], thread[order], process[thread[order]], markers, apart, parts)
    return _with_kinds(steps, recording, phased, phase)


def _with_kinds(steps: Steps, recording: Recording, phased: Phased, phase: Ints) -> Steps:
    """The same, where those whose markers record no kind are training if a backward pass or an optimizer ran inside."""
    marks, launched = phased.at(np.isin(phased.code, (BACKWARD, OPTIMIZER))), np.isin(phase, (BACKWARD, OPTIMIZER))
    thread, start, end = (
        np.append(getattr(marks, name), getattr(recording.launches, name)[launched])
        for name in ("thread", "start_ns", "end_ns")
    )
    # One of those between the same two bounds on one thread is enough.
    bounds = np.unique(np.concatenate((steps.start_ns, steps.end_ns, steps.parts.start_ns, steps.parts.end_ns)))
    one = grouped((thread, np.searchsorted(bounds, start, "right"), np.searchsorted(bounds, end))).first
    trained = {*step_at(steps, thread[one], recording.threads.process[thread[one]], start[one], end[one]).tolist()}
    kinds = [marker.kind or (TRAIN if row in trained else None) for row, marker in enumerate(steps.markers)]
    markers = [replace(marker, kind=kind) for marker, kind in zip(steps.markers, kinds, strict=True)]
    return replace(steps, markers=markers)


_BACKWARD_PHASES = ("backward", "recompute", "")


def _outermost_calls(recording: Recording, decoded: Decoded, calls: Calls, ends: RangeEnds) -> tuple[Outermost, Ints]:
    """The calls of a forward pass that no other encloses.

    Second, the processes in which such a call may belong to any of several models: it may begin a step, or be a part
    of one.
    """
    row = np.flatnonzero(calls.parent < 0)
    row = row[np.argsort(recording.ranges.start_ns[calls.range_row[row]], kind="stable")]
    range_row, known = calls.range_row[row], calls.known[row]
    thread = recording.ranges.thread[range_row]
    process = recording.threads.process[thread]
    passes = [not isinstance(item, ModuleMarker) or item.phase not in _BACKWARD_PHASES for item in decoded.bare]
    forward = np.array([*passes, False])[decoded.canonical_marker[calls.marker[row]]] & known & ~calls.captured[row]
    times = recording.ranges.start_ns[range_row], ends.end_ns[range_row]
    unclear = (calls.cause[row] == CAUSES.index(MODULE_UNCLEAR)) & ~known
    return Outermost(range_row, thread, process, *times, calls.module[row]).at(forward), np.unique(process[unclear])


def _led(
    recording: Recording, decoded: Decoded, calls: Calls, called: Outermost, processes: tuple[list[int], Ints]
) -> tuple[Rows, Rows, list[str], Rows]:
    """The steps of some processes: rows of the first and last ranges, names; threads that never work for another's.

    Of processes that train, only these threads.
    """
    nothing = np.empty(0, np.int64)
    first, last, apart = ([nothing] for _ in range(3))
    names: list[str] = []
    pending, training = processes
    for number in pending:
        own = called.at(called.process == number)
        led = led_steps(own, calls.modules, _parts(recording, decoded, calls, own.module, number))
        if number in training:
            apart.append(np.setdiff1d(own.thread, led.helping))
            continue
        recording.counters.add("calls", STEPS_UNCLEAR, led.unclear)
        first.append(own.range_row[led.first])
        last.append(own.range_row[led.last])
        names += led.name
        apart.append(np.setdiff1d(np.flatnonzero(recording.threads.process == number), led.helping))
    return np.concatenate(first), np.concatenate(last), names, np.concatenate(apart)


def _parts(recording: Recording, decoded: Decoded, calls: Calls, candidates: Rows, process: int) -> Flags:
    """Which of some modules are parts of another one that a process calls, by the paths in markers."""
    own = np.flatnonzero(recording.threads.process[recording.ranges.thread[calls.range_row]] == process)
    path, is_inside = decoded.path[calls.marker[own]], calls.parent[own] >= 0
    around = path[np.maximum.accumulate(np.where(is_inside, 0, np.arange(own.size)))]
    called, inside = (
        {decoded.paths[number] for number in distinct(path[rows])[0].tolist()}
        for rows in (path >= 0, (path >= 0) & is_inside & (path != around))
    )
    part = np.zeros(len(calls.modules), dtype=bool)
    for row in np.unique(candidates).tolist():
        marked = calls.modules[row].alias_of or calls.modules[row].path
        part[row] = is_part("" if marked == NAMELESS_ROOT else marked, called, inside)
    return part


def _marked_steps(
    recording: Recording, keyed: HierarchyKey, calls: Calls, ends: RangeEnds, called: Outermost
) -> tuple[Rows, list[StepMarker]]:
    """Ranges that mark steps, and for processes without any plain ranges that count iterations."""
    decoded, thread = keyed.decoded, recording.ranges.thread
    same_thread = recording.ranges.end_thread == -1
    marked = np.flatnonzero(decoded.ranges(recording, StepMarker) & same_thread)
    counting = np.flatnonzero(calls.innermost(keyed.steps.start, keyed.steps.end) < 0)
    process, marking = (recording.threads.process[thread[rows]] for rows in (keyed.steps.row[counting], marked))
    counting = counting[~np.isin(process, marking)]
    names = [keyed.step_markers[row].name for row in counting.tolist()]
    counting = counting[_around_calls(recording, ends, keyed.steps.row[counting], names, called)]
    found = (decoded.marker(row) for row in decoded.of_text[recording.ranges.text[marked]].tolist())
    rows, markers = _once_each(recording, ends, marked, [item for item in found if isinstance(item, StepMarker)])
    markers += [keyed.step_markers[row] for row in counting.tolist()]
    return np.concatenate((rows, keyed.steps.row[counting])), markers


def _around_calls(recording: Recording, ends: RangeEnds, rows: Rows, names: list[str], outermost: Outermost) -> Flags:
    """Which ranges have names whose ranges hold most calls of models that their process makes meanwhile.

    The model does not run inside a range such as ``optimizer step 17``. Replays of a graph make no calls.
    """
    kept = np.ones(rows.size, dtype=bool)
    thread = recording.ranges.thread[rows]
    name = np.unique(names, return_inverse=True)[1] if names else rows
    groups = grouped((recording.threads.process[thread], name))
    for number, first in enumerate(groups.first.tolist()):
        own = np.flatnonzero(groups.group == number)
        start, end = recording.ranges.start_ns[rows[own]], ends.end_ns[rows[own]]
        called = outermost.process == recording.threads.process[thread[first]]
        called &= (outermost.start_ns < end.max()) & (outermost.end_ns > start.min())
        order = np.argsort(start, kind="stable")
        reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[order]))
        inside = reach[np.searchsorted(start[order], outermost.start_ns[called], side="right")]
        kept[own] = 2 * int((inside >= outermost.end_ns[called]).sum()) >= int(called.sum())
    return kept


def _once_each(
    recording: Recording, ends: RangeEnds, marked: Rows, markers: list[StepMarker]
) -> tuple[Rows, list[StepMarker]]:
    """Those steps that count where some are inside others, so that no time and no token is in two of them.

    Around one other, the outer one counts: it is the same iteration. A step around several others is something larger,
    and they are the iterations.
    """
    start_ns, thread = recording.ranges.start_ns[marked], recording.ranges.thread[marked]
    start, end = one_axis([thread, thread], [start_ns, ends.end_ns[marked]])
    order = nesting_order(start, end)
    parent, depth = parents(start[order], end[order])
    until = subtree_ends(parent, depth)
    holds_none = until == np.arange(until.size) + 1
    ended = np.append(0, np.cumsum(holds_none))
    single = ended[until] - ended[:-1] == 1
    recording.counters.add("ranges", STEP_AROUND_STEPS, int((~single).sum()))
    outermost = np.flatnonzero(single & ~lookup(single, parent, missing=False))
    # The steps inside such a one form a chain.
    inner = [markers[row] for row in order.tolist()]
    chains = zip(outermost.tolist(), until[outermost].tolist(), strict=True)
    return marked[order[outermost]], [_as_one(inner[first:last]) for first, last in chains]


def _as_one(chain: list[StepMarker]) -> StepMarker:
    """What the markers of one iteration record together, outermost first: the first gives name and number."""
    if len(chain) == 1:
        return chain[0]
    most = max(chain, key=lambda item: sum(value is not None for value in (item.kind, item.batch_size, item.tokens)))
    return replace(chain[0], kind=most.kind, batch_size=most.batch_size, tokens=most.tokens)


def step_at(steps: Steps, thread: Ints, process: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The step of every piece of host work, or -1.

    It is the innermost step, or part of one, open on the same thread. A thread that marks none itself (such as
    autograd's) works for the step open in its process, if steps of different threads never overlap there.
    """
    own = _innermost_in(steps, np.arange(steps.start_ns.size), steps.thread, thread, start_ns, end_ns)
    part = _innermost_in(steps.parts, np.arange(steps.parts.step.size), steps.parts.thread, thread, start_ns, end_ns)
    own = np.where(own < 0, lookup(steps.parts.step, part), own)
    shared = np.flatnonzero(_without_overlap(steps)[steps.process]) if steps.process.size else np.empty(0, np.int64)
    apart = np.union1d(steps.thread, steps.apart)
    helping = np.flatnonzero(~np.isin(thread, apart))
    if shared.size and helping.size:
        own[helping] = _innermost_in(steps, shared, steps.process, process[helping], start_ns[helping], end_ns[helping])
    return own


def _innermost_in(steps: Steps | Parts, rows: Ints, step_line: Ints, line: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    if not rows.size or not line.size:
        return np.full(line.size, -1, dtype=np.int64)
    start, end, first, last = one_axis(
        [step_line[rows], step_line[rows], line, line], [steps.start_ns[rows], steps.end_ns[rows], start_ns, end_ns]
    )
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    return np.append(rows[order], -1)[innermost(start, end, parents(start, end)[0], first, last)]


def _without_overlap(steps: Steps) -> Flags:
    without = np.ones(int(steps.process.max()) + 1, dtype=bool)
    reach: dict[int, dict[int, int]] = {}
    # Where one thread has all steps, as usual, there is nothing to look for.
    several = mixed(steps.process, steps.thread, without.size)[steps.process]
    columns = (column[several].tolist() for column in (steps.process, steps.thread, steps.start_ns, steps.end_ns))
    for process, thread, start, end in zip(*columns, strict=True):
        threads = reach.setdefault(process, {})
        if any(start < last for other, last in threads.items() if other != thread):
            without[process] = False
        threads[thread] = max(threads.get(thread, start), end)
    return without


#: Name and kind of these steps.
TRAIN = "train"
_NEVER = np.iinfo(np.int64).min
#: The number of an optimizer and its class.
_Key = tuple[int, str | None]


class Training(NamedTuple):
    """Steps of training, in any order; of ``unclear`` threads it is known that they train, but not when a step ends."""

    start_ns: Ints
    end_ns: Ints
    thread: Rows
    unclear: Rows


def training_steps(phased: Phased, calls: Outermost) -> Training:
    """The steps of all threads that run optimizers."""
    stepping = np.array([phase.optimizer is not None for phase in phased.texts], dtype=bool)[phased.text]
    updated = np.array([phase.training == AFTER_UPDATE for phase in phased.texts], dtype=bool)[phased.text]
    by_optimizer = np.unique(phased.thread[stepping])
    nothing = np.empty(0, np.int64)
    start, end, thread, unclear = [nothing], [nothing], [nothing], [nothing]
    for number in np.unique(phased.thread[stepping | updated]).tolist():
        own = phased.at(phased.thread == number)
        steps_of_thread = _steps_of_optimizers if number in by_optimizer else _steps_between_updates
        begins, ends = steps_of_thread(own, calls.at(calls.thread == number))
        start.append(begins)
        end.append(ends)
        thread.append(np.full(ends.size, number))
        unclear.append(np.full(int(not ends.size), number))
    return Training(*map(np.concatenate, (start, end, thread, unclear)))


def _steps_of_optimizers(phased: Phased, calls: Outermost) -> tuple[Ints, Ints]:
    optimizers = _optimizer_steps(phased)
    first = _first_of_each_step(phased, optimizers, calls)
    if not first.size:
        return first, first
    end_ns = phased.end_ns[optimizers]
    before = np.maximum.accumulate(end_ns)[np.maximum(first - 1, 0)]
    begin = np.where(first > 0, before, _NEVER)
    end = np.append(np.maximum.accumulate(end_ns)[first[1:] - 1], end_ns.max())
    return _begins(phased, calls, begin, optimizers[first]), end


def _steps_between_updates(phased: Phased, calls: Outermost) -> tuple[Ints, Ints]:
    """When the steps of a thread begin and end on which no optimizer is known, but a model has changed between calls.

    Where several models change at different times, it is not known which of them ends a step.
    """
    kinds = [(phase.training, phase.number) for phase in phased.texts]
    updated = np.array([training == AFTER_UPDATE for training, _ in kinds], dtype=bool)[phased.text]
    nothing = np.empty(0, np.int64)
    if len({kinds[text] for text in phased.text[updated].tolist()}) > 1 or not calls.start_ns.size:
        return nothing, nothing
    first = calls.start_ns.min()
    after = np.sort(phased.start_ns[updated & (phased.start_ns > first)])
    evaluated = _after_evaluation(phased, np.append(first, after[:-1])[: after.size], after)
    backward = np.sort(phased.end_ns[phased.code == BACKWARD])
    work = np.sort(np.concatenate((backward, calls.end_ns)))
    fetched = _next(phased.start_ns[phased.code == DATA], _last(work, after))
    begin = np.append(max([first, *evaluated[:1]]), np.minimum(after, fetched))
    # All but the last end where the next begins, or with the last backward work before an evaluation.
    last = _last(backward, begin[1:])
    end = np.where((evaluated > begin[:-1]) & (last > begin[:-1]), last, begin[1:])
    end = np.append(end, max(phased.end_ns.max(), calls.end_ns.max()))
    if backward.size and begin[-1] < backward[-1] < calls.start_ns.max():
        end[-1] = backward[-1]  # what is called after the last backward pass evaluates
    return begin, end


def _optimizer_steps(phased: Phased) -> Rows:
    """The ranges of optimizer steps: the numbered ones, if there are some, and of nested ones the innermost."""
    stepping = np.array([phase.optimizer is not None for phase in phased.texts], dtype=bool)
    numbered = (stepping & np.array([phase.number is not None for phase in phased.texts], dtype=bool))[phased.text]
    rows = np.flatnonzero(numbered if numbered.any() else stepping[phased.text])
    around = parents(phased.start[rows], phased.end[rows])[0]
    inner = np.ones(rows.size, dtype=bool)
    inner[around[around >= 0]] = False
    return rows[inner]


def _first_of_each_step(phased: Phased, optimizers: Rows, calls: Outermost) -> Rows:
    phases = [phased.texts[row] for row in phased.text[optimizers].tolist()]
    if not phases:
        return np.empty(0, np.int64)
    keys = [(phase.number if phase.number is not None else -1, phase.optimizer) for phase in phases]
    leading = np.concatenate([_leading(keys, begin, end) for begin, end in pairwise(_loops(keys))])
    if not calls.start_ns.size:
        return leading
    # If nothing is called in between, both end the same step: optimizers of one class, or a step that was repeated.
    calls_before = np.searchsorted(calls.start_ns, phased.start_ns[optimizers[leading]])
    return np.asarray(leading[np.append(True, np.diff(calls_before) > 0)])


def _loops(keys: list[_Key]) -> list[int]:
    """Where loops begin that run one after the other, as pretraining and tuning do, and the end of the last.

    Optimizers that take turns are of one loop. One that steps only once is of the loop before.
    """
    last = {key: row for row, key in enumerate(keys)}
    begins, end = [0], 0
    for row, key in enumerate(keys):
        if row > end and row - begins[-1] > 1 and last[key] > row:
            begins.append(row)
        end = max(end, last[key])
    return [*begins, len(keys)]


def _leading(keys: list[_Key], begin: int, end: int) -> Rows:
    """The steps of the optimizer that leads a loop; for the first of them in a later loop, what steps before."""
    times = Counter(keys[begin:end])
    first_seen = {key: -row for row, key in reversed([*enumerate(keys)])}
    leader = max(times, key=lambda key: (times[key], -key[0], first_seen[key]))
    rows = [row for row in range(begin, end) if keys[row] == leader]
    return np.array([begin, *rows[1:]] if begin else rows)


def _begins(phased: Phased, calls: Outermost, before: Ints, optimizer: Rows) -> Ints:
    # Until the end of the optimizer's range: a closure may run the model inside it.
    after = _after_evaluation(phased, before, phased.end_ns[optimizer])
    unknown = (before == _NEVER) | (after > before)
    since = np.maximum(before, _last(np.sort(calls.end_ns), after))
    preparing = phased.start_ns[np.isin(phased.code, (DATA, OPTIMIZER))]
    signs = np.minimum(_next(preparing, since), _next(calls.start_ns, np.maximum(since, after)))
    return np.where(unknown, np.minimum(signs, phased.start_ns[optimizer]), before)


def _after_evaluation(phased: Phased, before: Ints, until: Ints) -> Ints:
    """When the first call of training after the last evaluation of each step began; ``_NEVER`` without evaluation.

    What runs without gradients in every step, without being switched to evaluation, is a part of the step.
    """
    kind = np.array([phase.training or "" for phase in phased.texts], dtype=object)[phased.text]
    latest = np.full(before.size, _NEVER)
    for name in (AFTER_EVALUATION, AFTER_NO_GRAD):
        at = np.append(_NEVER, phased.start_ns[kind == name])
        last = at[np.searchsorted(at, until) - 1]
        inside = last >= before
        inside &= last > _NEVER
        if name == AFTER_EVALUATION or not inside[1:].all():
            latest = np.maximum(latest, np.where(inside, last, _NEVER))
    return latest


def _last(times: Ints, at: Ints) -> Ints:
    return np.append(_NEVER, times)[np.searchsorted(times, at, side="right")]


def _next(times: Ints, at: Ints) -> Ints:
    times = np.sort(times)
    return np.append(times, np.iinfo(np.int64).max)[np.searchsorted(times, at)]
