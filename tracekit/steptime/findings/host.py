"""What the host does while the device is idle: waits, launches, loads data, compiles, allocates, or runs other code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts
from tracekit.arrays.intervals import Covered, covered, cut, innermost, nesting_order, parents
from tracekit.arrays.text import duration
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers.base import OPERATOR
from tracekit.steptime.findings.advice import READ, SYNCHRONISED
from tracekit.steptime.findings.rows import Candidate, StepRows
from tracekit.steptime.timeline import Spans
from tracekit.steptime.whatif.changes import Changing

#: How long a device takes between nodes of a graph, where the recording has no work that follows other work at once.
_BETWEEN_NODES_NS = 500
#: How many kernels modules launch in a step at least to be worth a graph: a loss with a handful is not.
_LEAST_LAUNCHES = 5
#: How many places of code outside modules are named, and which share each must have.
_PLACES, _LEAST_PLACE = 3, 0.05


def waits(steps: StepRows) -> Iterator[Candidate]:
    """Waits for the device, of threads that start work, by module.

    As ``whatif --no-sync`` has it: copies no longer block, and calls that only wait take no time.
    """
    events, every, down = steps.events, _waits(steps), steps.copied("device-to-host")
    for module, own in steps.by_pattern(events.module[every]):
        rows = every[own]
        prior = steps.before[rows]
        gone = counts(rows, events.start.size) > 0
        most = steps.per_step(int((events.end - events.start)[rows].sum()))
        # A wait reads if it copies from the device, or the call before it in the same step did.
        reads = (prior >= 0) & down[steps.launched[prior]] & (steps.event_step[prior] == steps.event_step[rows])
        name = "read" if (reads | down[steps.launched[rows]]).any() else "synchronize"
        call = str(steps.waits.name[steps.wait[rows[0]]]).split("_")[0]
        what = READ if name == "read" else SYNCHRONISED.format(call=call)
        first = events.module[rows[0]]
        # The launches of their module, or the budget where it has none.
        end = np.append(steps.modules.end, -1)[first]
        launches = bool(((steps.work.module >= first) & (steps.work.module < end)).any())
        question = ("launches", events.module[rows]) if launches else ("budget",)
        evidence = steps.evidence("waits", steps.waits.id[steps.wait[rows]], *question)
        edit, text = partial(Changing.without_sync, gone=gone), f"{what} {steps.advice(name)}"
        yield Candidate(module, most, edit, evidence, text)


def _waits(steps: StepRows) -> Rows:
    events = steps.events
    kinds = np.isin(steps.wait_kind, ("synchronize", "copy", "pageable_copy"))
    rows = np.flatnonzero(kinds & ~steps.uploads)
    rows = rows[steps.counted(rows) & np.isin(events.thread[rows], events.thread[steps.launched >= 0])]
    # A call that waits right after a copy from pageable memory is part of that copy.
    return np.asarray(rows[~np.append(steps.uploads, False)[steps.before[rows]]])


def launch_bound(steps: StepRows) -> Iterator[Candidate]:
    """The outermost modules that launch too slowly in which nothing blocks."""
    work, modules = steps.work, steps.modules
    launches = (steps.launched >= 0) & ~np.append(work.from_replay, False)[steps.launched]
    launching = _subtree(steps, work.module[steps.launched[launches & steps.counted(np.arange(launches.size))]])
    blocking = np.flatnonzero(steps.events.blocks)
    blocking = blocking[steps.counted(blocking)]
    called = np.zeros(len(modules.path), dtype=bool)
    called[steps.calls.module[steps.calls.module >= 0]] = True
    called &= np.array([kind != OPERATOR for kind in modules.kind], dtype=bool) & (launching > 1)
    called &= _subtree(steps, steps.events.module[blocking]) == 0
    text = steps.advice("launch_bound", how=steps.advice("graph"))
    above = np.zeros(called.size, dtype=bool)
    for row, parent in enumerate(modules.parent.tolist()):
        above[row] = parent >= 0 and (above[parent] or called[parent])
    outermost = np.flatnonzero(called & ~above)
    for module, own in steps.by_pattern(outermost):
        rows = outermost[own]
        if launching[rows].sum() >= _LEAST_LAUNCHES * max(1, steps.steps):
            yield _graph(steps, module, rows, text)


def _subtree(steps: StepRows, module: Rows) -> Ints:
    """How many rows each module has with all below it."""
    return steps.modules.subtree_sums(np.bincount(module[module >= 0], minlength=len(steps.modules.path)))


def _graph(steps: StepRows, module: str | None, rows: Rows, text: str) -> Candidate:
    chosen = np.zeros(len(steps.modules.path) + 1, dtype=bool)
    for row in rows.tolist():
        chosen[row : int(steps.modules.end[row])] = True
    events = np.flatnonzero(steps.model.changing().calls_of(chosen))
    events = events[steps.counted(events)]
    lasts = steps.events.end - steps.events.start + steps.code - steps.model.changing().code_in(steps.phases)
    most = steps.per_step(int(lasts[events].sum()))
    kernels = steps.work.kernel[steps.launched[events[steps.launched[events] >= 0]]]
    evidence = steps.evidence("kernels", kernels, "launches", rows)
    return Candidate(module, most, partial(_as_graph, chosen, steps.phases), evidence, text)


def _as_graph(chosen: Flags, phases: Spans, changing: Changing) -> None:
    """Calls become graphs; what of their code is of phases with families of their own stays."""
    kept, tasks, work = changing.code_in(phases), changing.tasks, changing.found.work
    changing.as_graph(chosen)
    tasks.code = np.maximum(tasks.code, kept)
    follows = np.flatnonzero((tasks.before >= 0) & (tasks.event == np.append(tasks.event, -1)[tasks.before]))
    follows = follows[(tasks.event[follows] >= 0) & ~work.from_replay[follows] & (tasks.order[follows] == 0)]
    apart = work.start[follows] - work.end[tasks.before[follows]]
    order = tasks.order.copy()
    order[follows] = np.clip(apart, 0, _BETWEEN_NODES_NS)
    tasks.order = order


def data_loading(steps: StepRows) -> Iterator[Candidate]:
    """Ranges of the DataLoader, and stretches between calls of modules in which the thread waits for no device."""
    (ranges, ids), rows = steps.ranges_of("data"), _sleeps(steps)
    sleeps = steps.waits.spans.at(rows)
    start, end = steps.edges(sleeps.thread, sleeps.start, sleeps.end)
    around = sleeps._replace(start=start, end=end)
    found = Spans(*(np.concatenate(pair) for pair in zip(ranges, around, strict=True)))
    table, ids = ("ranges", ids) if ids.size else ("waits", steps.waits.id[rows])
    yield from _code(steps, found, steps.evidence(table, ids, "budget"), steps.advice("data_loading"))


def _sleeps(steps: StepRows) -> Rows:
    """Waits of the operating system in steps but outside modules, in which no other thread launches work."""
    waits, spans = steps.waits, steps.waits.spans
    rows = np.flatnonzero((waits.kind == "os_wait") & (waits.event < 0) & (spans.module < 0))
    rows = rows[np.isin(spans.thread[rows], steps.calls.thread) & (waits.step[rows] >= 0)]
    starts = np.sort(steps.events.start[steps.launched >= 0])
    during = np.searchsorted(starts, spans.end[rows]) > np.searchsorted(starts, spans.start[rows])
    return np.asarray(rows[~during])


def recompilation(steps: StepRows) -> Iterator[Candidate]:
    """Ranges of torch.compile at work."""
    ranges, _ = steps.ranges_of("compile")
    tables = [part.table("steps", ["step_id", "compile_ns"]) for part in steps.dataset.by_report()]
    ids = np.concatenate([integers(table, "step_id")[integers(table, "compile_ns") > 0] for table in tables])
    if ids.size:
        text = steps.advice("recompilation", how=steps.advice("dynamic"))
        yield from _code(steps, ranges, steps.evidence("steps", ids, "steps"), text)


def garbage_collection(steps: StepRows) -> Iterator[Candidate]:
    """Collections on threads that call CUDA, as ``tracekit capture`` marks them."""
    ranges, ids = steps.ranges_of("garbage_collection")
    yield from _code(steps, ranges, steps.evidence("ranges", ids, "budget"), steps.advice("garbage_collection"))


def _code(steps: StepRows, stretches: Spans, evidence: dict[str, Any], text: str) -> Iterator[Candidate]:
    """Code in some stretches that would go."""
    if stretches.start.size:
        most = steps.per_step(int((stretches.end - stretches.start).sum()))
        yield Candidate(None, most, partial(Changing.without_code, stretches=stretches), evidence, text)


def allocation(steps: StepRows) -> Iterator[Candidate]:
    """All allocations in steps at once; the module is the one with most of their time."""
    rows = np.flatnonzero(np.isin(steps.wait_kind, ("allocation", "free")))
    rows = rows[steps.event_step[rows] >= 0]
    if rows.size:
        lasts = (steps.events.end - steps.events.start)[rows]
        module = max(steps.by_pattern(steps.events.module[rows]), key=lambda one: int(lasts[one[1]].sum()))[0]
        edit = partial(Changing.without_waiting, gone=counts(rows, steps.events.start.size) > 0, takes=0)
        evidence = steps.evidence("waits", steps.waits.id[steps.wait[rows]], "budget")
        yield Candidate(module, steps.per_step(int(lasts.sum())), edit, evidence, steps.advice("allocation"))


def host_code(steps: StepRows) -> Iterator[Candidate]:
    """Code outside modules of the threads that launch most, which could run while the device works.

    Where all of it does, a step takes as long as that code at least.
    """
    places, found, total = Counter[str](), [], 0
    for thread in _main_threads(steps):
        time, events = _outside(steps, thread), np.flatnonzero(steps.events.thread == thread)
        rows = events[steps.counted(events) & (steps.previous[events] >= 0)]
        rows = rows[steps.code[rows] > 0]
        code = covered(steps.events.end[steps.previous[rows]], steps.events.start[rows])
        found.append(Spans(np.full(time.start.size, thread), time.start, time.end, np.full(time.start.size, -1)))
        total += int((code.until(time.end) - code.until(time.start)).sum())
        for text, ns in _places(steps, thread, time, code):
            places[text] += ns
    each = steps.per_step(total) / max(1, len(found))
    if places:
        shares = [(text, ns / places.total()) for text, ns in places.most_common(_PLACES)]
        where = ", ".join(f"{text} {share:.0%}" for text, share in shares if share >= _LEAST_PLACE)
        figures = {"time": duration(each), "share": min(1.0, each / steps.step_ns), "where": where}
        text = steps.advice("host_code", **figures, how=steps.advice("overlap"))
        edit = partial(Changing.without_code, stretches=Spans(*map(np.concatenate, zip(*found, strict=True))))
        evidence = steps.evidence("waits", steps.waits.id[:0], "budget")
        yield Candidate(None, max(0.0, min(each, steps.step_ns - each)), edit, evidence, text)


def _main_threads(steps: StepRows) -> list[int]:
    """The thread of every process that launches most."""
    launching = np.flatnonzero(steps.launched >= 0)
    thread, number = np.unique(steps.events.thread[launching], return_counts=True)
    thread = thread[np.argsort(number, kind="stable")]
    process = steps.events.process[np.searchsorted(steps.events.thread, thread)]
    return [*dict(zip(process.tolist(), thread.tolist(), strict=True)).values()]


def _outside(steps: StepRows, thread: int) -> Covered:
    """When a thread was in no call of a module, phase with a family of its own, or wait of the operating system."""
    busy = steps.calls, steps.phases, steps.waits.spans.at(steps.waits.kind == "os_wait")
    start, end = (np.concatenate([part[at][part.thread == thread] for part in busy]) for at in (1, 2))
    inside, events = covered(start, end), np.flatnonzero(steps.events.thread == thread)
    begin = np.append(int(steps.events.start[events].min()), inside.end)
    until = np.append(inside.start, int(steps.events.end[events].max()))
    return covered(begin[until > begin], until[until > begin])


def _places(steps: StepRows, thread: int, time: Covered, code: Covered) -> Iterator[tuple[str, int]]:
    """In which range, or behind which module's call, a thread ran code in some stretches while its work did not run."""
    own = np.append(steps.events.thread, -1)[steps.work.event] == thread
    busy = covered(steps.work.start[own], steps.work.end[own])
    ranges, texts = steps.unmarked
    rows = np.flatnonzero(ranges.thread == thread)
    rows = rows[nesting_order(ranges.start[rows], ranges.end[rows])]
    start, end, texts = ranges.start[rows], ranges.end[rows], np.array([*texts[rows], None], object)
    edges = np.unique(np.concatenate([start, end, busy.start, busy.end, [np.iinfo(np.int64).min]]))
    _, _, begin, until = cut(time.start, time.end, edges)
    lasts = np.where(busy.hold(begin), 0, code.until(until) - code.until(begin))
    around = innermost(start, end, parents(start, end)[0], begin, begin + 1)
    kinds = np.array([*steps.modules.kind, OPERATOR], object)
    calls = np.flatnonzero((steps.calls.thread == thread) & (kinds[steps.calls.module] != OPERATOR))
    calls = calls[np.lexsort((-steps.calls.start[calls], steps.calls.end[calls]))]
    module = np.append(steps.calls.module[calls], -1)[np.searchsorted(steps.calls.end[calls], begin, "right") - 1]
    for text, row, ns in zip(texts[around].tolist(), module.tolist(), lasts.tolist(), strict=True):
        if ns:
            yield f"in {text}" if text else f"behind {steps.patterns[row]}" if row >= 0 else "before all modules", ns
