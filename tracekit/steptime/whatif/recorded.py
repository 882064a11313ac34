"""What a report holds of a step's dependencies: calls on host threads, device work, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.aggregates.weighted_kernels import report_codes
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import in_order, integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import collectives_in
from tracekit.ranks.meetings import Clock
from tracekit.steptime.timeline import NEVER, awaited_by_streams
from tracekit.steptime.windows import Steps, host_spans, host_steps, read, thread_keys

_WORK = (
    *("kernel_id", "kind", "name", "module_id", "pid", "tid", "device", "context", "stream", "step_id"),
    *("collective", "copy_kind", "bytes"),
)
_TIMES = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
#: Names of calls that wait for all streams of a device.
_WHOLE_DEVICE = ("devicesynchronize", "ctxsynchronize", "threadsynchronize")
#: Kinds of ``waits`` that the device ends; others take as long as they take.
_ENDED_BY_WORK = ("synchronize", "copy", "pageable_copy")


class Events(NamedTuple):
    """The outermost CUDA calls on each host thread, and the borders of steps as empty calls, by thread and start."""

    thread: Rows
    process: Ints
    start: Ints
    end: Ints
    previous: Rows  # row of the call before it in the order of the program (see :func:`previous_calls`), or -1
    blocks: Flags  # whether it blocks its thread; ``ended_by_work`` whether it does so until work ends
    ended_by_work: Flags
    work: Rows  # row of the work that it waits for, or -1
    everywhere: Flags  # whether it waits for all streams of its process
    module: Rows
    perhaps: Rows  # row of the work that it may wait for where the report does not tell, or -1


class Work(NamedTuple):
    """Device work by report and start."""

    kernel: Ints  # its id
    report: Rows
    line: Rows
    step: Ints
    context: Rows
    # A number for its process, device, context and stream; ``context`` one for the first three, ``line`` for the first
    # two.
    stream: Rows
    start: Ints
    end: Ints
    event: Rows  # row of the call that launched it, or -1
    before: Rows  # row of the work before it on its stream, or -1
    module: Rows
    name: Rows
    names: list[str]
    collective: Flags
    from_replay: Flags
    pinned: Ints  # how long it lasts with pinned memory at least and at most: other work than copies as it does


class Threads(NamedTuple):
    """Host threads with CUDA calls or steps, by report."""

    report: Rows
    key: Ints

    def of_report(self, report: int, keys: Ints) -> Rows:
        """The threads of a report by their keys, or -1."""
        own = np.flatnonzero(self.report == report)
        return lookup(own, positions(keys, self.key[own]))


class Recorded(NamedTuple):
    """What reports hold, each with the times of its own clock."""

    events: Events
    work: Work
    waits: tuple[Rows, Rows]  # pairs of work: the first waits for the second
    threads: Threads
    has_dependencies: bool
    steps: Steps
    borders: tuple[Rows, Rows]  # of their starts and ends, the places among starts and ends of events in turn, or -1

    def steps_moved(self, starts: Ints, ends: Ints) -> Steps:
        """The steps where starts and ends of events are so much later."""
        shifts = np.column_stack((starts, ends)).ravel()
        begin, end = (lookup(shifts, border, 0) for border in self.borders)
        return self.steps._replace(start=self.steps.start + begin, end=self.steps.end + end)

    def on_one_clock(self, clocks: Sequence[Clock]) -> Recorded:
        """The same with times of events and work on the clock that the reports share."""
        events, work, of_events = self.events, self.work, self.threads.report[self.events.thread]
        start, end = (on_one_clock(clocks, of_events, time) for time in (events.start, events.end))
        begin, until = (on_one_clock(clocks, work.report, time) for time in (work.start, work.end))
        events = events._replace(start=start, end=end)
        return self._replace(events=events, work=work._replace(start=begin, end=until))


def on_one_clock(clocks: Sequence[Clock], report: Rows, time: Ints) -> Ints:
    """Times on the clock that reports share, given the report of each, in order."""
    parts = np.split(time, np.searchsorted(report, np.arange(1, len(clocks))))
    return np.concatenate([clock.at(own) for clock, own in zip(clocks, parts, strict=True)])


def recorded(dataset: Dataset, modules: Hierarchy) -> Recorded:
    """Reads all reports."""
    kernels = read(dataset, "kernels", [*_WORK, *_TIMES])
    keys = integers(kernels, "kernel_id"), integers(kernels, "start_ns"), report_codes(dataset, kernels)
    on_device = np.flatnonzero(~labels(kernels, "kind").among("cpu_op"))
    kernels = in_order(kernels, on_device[np.lexsort([key[on_device] for key in keys])])
    waits = read(dataset, "waits", ["kind", "name", "pid", "tid", "start_ns", "dur_ns", "module_id", "kernel_id"])
    # A thread that waits for another one has no call of its own meanwhile.
    waits = waits.filter(pa.array(~labels(waits, "kind").among("os_wait")))
    others = read(dataset, "api_calls", ["pid", "tid", "start_ns", "dur_ns", "context", "stream", "kernel_id"])
    steps, report_of = host_steps(dataset), partial(report_codes, dataset)
    of_steps, report = report_of(read(dataset, "steps", ["step_id"])), report_of(kernels)
    launch = (integers(kernels, f"launch_{name}_ns", NEVER) for name in ("start", "end"))
    spans = {
        "waits": (report_of(waits), *host_spans(waits)),
        "kernels": (report, thread_keys(kernels), *launch),
        "api_calls": (report_of(others), *host_spans(others)),
        "begin": (of_steps, steps.thread, steps.start, steps.start),
        "end": (of_steps, steps.thread, steps.end, steps.end),
    }
    events, event_of, threads = _events(spans, waits, (modules.rows(waits), modules.rows(kernels)))
    work = _work(kernels, report, event_of["kernels"], modules)
    awaited = positions(integers(waits, "kernel_id"), work.kernel)
    work = work._replace(pinned=_pinned(kernels, work, awaited[labels(waits, "kind").among("pageable_copy")]))
    process = _process(report, integers(kernels, "pid"))
    events = _with_awaited(events, event_of["waits"], awaited, work, process)
    told = np.unique(report_of(others)[integers(others, "stream") >= 0])
    pairs = zip(
        awaited_by_streams(kernels, others, process),
        _before_collectives(work, events.thread, ~np.isin(report, told)),
        strict=True,
    )
    first, second = map(np.concatenate, pairs)
    borders = _borders(events.start, steps.start, event_of["begin"]), _borders(events.start, steps.end, event_of["end"])
    return Recorded(events, work, (first, second), threads, told.size == len(dataset.names), steps, borders)


def _process(report: Rows, pid: Ints) -> Ints:
    """A number for a process of a report."""
    return (report << 40) + pid


def _borders(start: Ints, time: Ints, event: Rows) -> Rows:
    return np.where(event >= 0, 2 * event + (time > lookup(start, event)), -1)


def _events(
    spans: dict[str, tuple[Ints, ...]], waits: pa.Table, modules: tuple[Rows, Rows]
) -> tuple[Events, dict[str, Rows], Threads]:
    """The outermost calls, which of them each span is in, and their threads.

    Spans have a report, thread, start and end; ``modules`` are those of waits and kernels.
    """
    names, ended_by_work = labels(waits, "name"), labels(waits, "kind").among(*_ENDED_BY_WORK)
    whole = names.among(*(word for word in names.words if word.lower().split("_")[0].endswith(_WHOLE_DEVICE)))
    size = [report.size for report, *_ in spans.values()]
    part = np.repeat(np.arange(len(size)), size)
    row = np.concatenate([np.arange(number) for number in size])
    report, key, first, last = map(np.concatenate, zip(*spans.values(), strict=True))
    thread, one = grouped((report, key))
    threads = Threads(report[one], key[one])
    known = np.flatnonzero(~np.isin(first, (NEVER, np.iinfo(np.int64).max)))
    order = known[np.lexsort((part[known], -last[known], first[known], thread[known]))]
    thread, first, last, part, row = (column[order] for column in (thread, first, last, part, row))
    begin, until = one_axis([thread, thread], [first, last])
    outermost = np.append(True, begin[1:] >= np.maximum.accumulate(until)[:-1])[: thread.size]
    # An empty call at the very start of another is no part of it, and two with one extent are one.
    number = np.cumsum(outermost) - 1
    event_of = {name: np.full(count, -1) for name, count in zip(spans, size, strict=True)}
    for at, own in enumerate(event_of.values()):
        own[row[part == at]] = number[part == at]
    lead = np.flatnonzero(outermost)
    thread, first, last = thread[lead], first[lead], last[lead]
    of_wait, of_kernel = (np.where(part[lead] == at, row[lead], -1) for at in (0, 1))
    process = _process(threads.report, threads.key >> 32)[thread]
    events = Events(
        thread,
        process,
        first,
        last,
        previous_calls(process, thread, first, last),
        of_wait >= 0,
        lookup(ended_by_work, of_wait, 0).astype(bool),
        np.full(lead.size, -1),
        lookup(whole & ended_by_work, of_wait, 0).astype(bool),
        np.where(of_wait >= 0, lookup(modules[0], of_wait), lookup(modules[1], of_kernel)),
        np.full(lead.size, -1),
    )
    return events, event_of, threads


#: The most bytes a ns of a link: 16 lanes of PCIe 5.0; and how long a copy takes at least.
_LINK, _LEAST_COPY_NS = 63.0, 1_000


def _pinned(copies: pa.Table, work: Work, pageable: Rows) -> Ints:
    """What copies take that no longer are of pageable memory: as others of their direction, or as fast as a link."""
    lasts, size = work.end - work.start, integers(copies, "bytes", 0)
    kinds = grouped((work.report, labels(copies, "copy_kind").code)).group
    pinned, slow = np.column_stack((lasts, lasts)), np.zeros(lasts.size, dtype=bool)
    slow[pageable[pageable >= 0]] = True
    for kind in np.unique(kinds[slow]).tolist():
        own = kinds == kind
        others = np.flatnonzero(own & ~slow & (lasts > 0) & (size >= np.median(size[own & slow])))
        rate = float(np.median(size[others] / lasts[others])) if others.size else None
        rows = np.flatnonzero(own & slow)
        pinned[rows, 0] = np.minimum(lasts[rows], np.maximum(size[rows] / (rate or _LINK), _LEAST_COPY_NS))
        pinned[rows, 1] = lasts[rows] if rate is None else pinned[rows, 0]
    return pinned


#: How soon after work ends a call returns that waited for it.
_RETURNS_NS = 10_000


def _with_awaited(events: Events, event_of: Rows, recorded: Rows, work: Work, process: Ints) -> Events:
    """What calls wait for: as recorded, else what ended right before they do, or else what they may wait for."""
    awaited, perhaps = events.work.copy(), events.perhaps.copy()
    rows = np.flatnonzero((recorded >= 0) & (event_of >= 0))
    rows = rows[events.blocks[event_of[rows]]]
    awaited[event_of[rows]] = recorded[rows]
    asking = np.flatnonzero(events.ended_by_work & (awaited < 0))
    for number in np.unique(events.process[asking]).tolist():
        own, calls = np.flatnonzero(process == number), asking[events.process[asking] == number]
        own = own[np.argsort(work.end[own], kind="stable")]
        place = np.searchsorted(work.end[own], events.end[calls], "right") - 1
        last = lookup(own, place)
        since = lookup(work.end, last, NEVER)
        seen = (last >= 0) & (since > events.start[calls]) & (events.end[calls] - np.maximum(since, 0) <= _RETURNS_NS)
        awaited[calls[seen]], perhaps[calls[~seen]] = last[seen], last[~seen]
    return events._replace(work=awaited, perhaps=perhaps)


def _work(kernels: pa.Table, report: Rows, event: Rows, modules: Hierarchy) -> Work:
    names, ids = labels(kernels, "name"), integers(kernels, "kernel_id")
    of_modules = modules.rows(kernels)
    place = [integers(kernels, name).astype(np.int64) for name in ("pid", "device", "context", "stream")]
    line, context, stream = (grouped([report, *place[:number]]).group for number in (2, 3, 4))
    by_stream, before = np.argsort(stream, kind="stable"), np.full(ids.size, -1)
    same = stream[by_stream[1:]] == stream[by_stream[:-1]]
    before[by_stream[1:][same]] = by_stream[:-1][same]
    several = lookup(np.bincount(event[event >= 0], minlength=1), event, 0) > 1
    start, end = integers(kernels, "start_ns"), integers(kernels, "end_ns")
    step = integers(kernels, "step_id").astype(np.int64)
    return Work(
        ids, report, line, step, context, stream, start, end, event, before, of_modules, names.code, names.words,
        collectives_in(kernels), several, np.column_stack((end - start, end - start)),
    )  # fmt: skip


def _before_collectives(work: Work, thread: Rows, chosen: Flags) -> tuple[Rows, Rows]:
    """Collectives, and the work of another stream that their thread launched last before: torch lets them wait for it.

    Not those of streams where one ever began before that work ended: torch's wait for the stream that is current.
    """
    rows = np.flatnonzero((work.event >= 0) & ~work.from_replay & chosen)
    rows = rows[np.argsort(work.event[rows], kind="stable")]
    last = rows[np.maximum.accumulate(np.where(work.collective[rows], 0, np.arange(rows.size)))]
    same = (thread[work.event[rows]] == thread[work.event[last]]) & (work.context[rows] == work.context[last])
    fits = same & work.collective[rows] & ~work.collective[last] & (work.stream[rows] != work.stream[last])
    one, other = rows[fits], last[fits]
    kept = ~np.isin(work.stream[one], work.stream[one[work.start[one] < work.end[other]]])
    return one[kept], other[kept]


#: The share of calls that may overlap, and how many standard deviations fewer runs there must be than by chance.
_OVERLAPPING, _FEWER = 0.01, 3


def previous_calls(process: Ints, thread: Rows, start: Ints, end: Ints) -> Rows:
    """For each call the row of the one before it on its thread, or on threads that take turns with it; or -1.

    Reports do not tell what makes a thread go on, such as the one that calls ``backward`` and the one that runs it. But
    threads whose calls never overlap, and alternate far less often than they would by chance, run one program: what the
    one does next depends on what the other did last. Calls are sorted by thread and start; those of one do not overlap.
    """
    # The thread of each call; of threads that take turns, the busiest.
    program = thread.copy()
    busiest: dict[int, int] = {}
    numbers, counts = np.unique(thread, return_counts=True)
    for number in numbers[np.argsort(-counts, kind="stable")].tolist():
        own = np.flatnonzero(thread == number)
        first = busiest.setdefault(int(process[own[0]]), number)
        others = np.flatnonzero(program == first)
        if number != first and _take_turns((start[own], end[own]), (start[others], end[others])):
            program[own] = first
    order = np.lexsort((np.arange(start.size), end, program))
    previous = np.full(start.size, -1)
    same = program[order[1:]] == program[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _take_turns(own: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> bool:
    order = np.argsort(others[0], kind="stable")
    start, end = others[0][order], others[1][order]
    place = np.searchsorted(start, own[0])
    # With the one of the others that started last before them, or with the next.
    overlaps = (place > 0) & (end[place - 1] > own[0])
    overlaps |= (place < start.size) & (start[np.minimum(place, start.size - 1)] < own[1])
    if overlaps.mean() > _OVERLAPPING:
        return False
    one, other = own[0].size, int(place[-1] - place[0])
    runs = 2 * np.unique(place).size - 1
    # Wald and Wolfowitz: of two kinds in random order.
    expected = 1 + 2 * one * other / (one + other)
    variance = (expected - 1) * (expected - 2) / max(1, one + other - 1)
    return bool(runs < expected - _FEWER * max(0.0, variance) ** 0.5)
