"""Columns as tables of a recording: ranges and launches, device work, autograd's threads, annotated modules."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import agreed, grouped, minima
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import NEVER_ENDED, NO_CORRELATION_ID, OTHER_EVENT, PROCESS_UNKNOWN
from tracekit.kineto.arguments import direction_of
from tracekit.kineto.columns import DEVICE_WORK, KERNEL, MEMCPY, MEMSET, Columns
from tracekit.markers.base import ModuleMarker
from tracekit.markers.torch_texts import ANNOTATED_MODULES, annotated_text
from tracekit.nsight.tables import short_name
from tracekit.recording import tables
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import Allocations, Launches, Ranges, StreamCalls, Threads, Work, nested
from tracekit.recording.values import COPY_KINDS, deepest, stack_text


def threads_of(ids: Sequence[tuple[int, int]]) -> tuple[Threads, Ints]:
    """The threads in the order of their ids, and the row there of each one given."""
    pairs = np.array(ids, dtype=np.int64).reshape(-1, 2)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    row = np.empty(order.size, dtype=np.int64)
    row[order] = np.arange(order.size)
    pid, tid = pairs[order].T
    process_pid, process = np.unique(pid, return_inverse=True)
    return Threads(pid=pid, tid=tid, process=process, process_pid=process_pid), row


def ranges_table(parts: Iterable[Columns], counters: LossCounters) -> Ranges:
    """Ranges of events that have a text."""
    rows = [{"open": np.zeros_like(part["start"]), "made_on": np.full_like(part["start"], -1)} | part for part in parts]
    columns = ("start", "end", "thread", "text", "open", "made_on")
    start, end, thread, text, never_ended, made_on = (np.concatenate([part[name] for part in rows]) for name in columns)
    counters.add("ranges", NEVER_ENDED, int(never_ended.sum()))
    ranges = Ranges.of(
        start_ns=start,
        end_ns=end,
        open=never_ended.astype(bool),
        kind=np.full(start.size, tables.PUSH_POP, dtype=np.int8),
        thread=thread,
        text=text,
        forward_thread=made_on,
    )
    return nested(ranges)


def launches_table(calls: Columns, counters: LossCounters) -> Launches:
    """API calls."""
    linked = calls["correlation"] > 0
    counters.add("launches", NO_CORRELATION_ID, int((~linked).sum()))
    columns = {"start_ns": "start", "end_ns": "end", "correlation_id": "correlation"}
    columns |= {name: name for name in ("thread", "name", "kernel")}
    return nested(Launches.of(**{ours: calls[theirs] for ours, theirs in columns.items()}).filter(linked))


def stream_calls_table(rows: Columns, launches: Launches, threads: Threads, counters: LossCounters) -> StreamCalls:
    """Waits for streams and events; Kineto does not write on which stream an event was recorded but here."""
    columns = _SAME | {"recorded_by": "recorded_by", "event_stream": "event_stream", "event_context": "context"}
    process = _processes_of(rows["correlation"], launches, threads)
    known = (rows["correlation"] > 0) & (process >= 0)
    counters.add("events", OTHER_EVENT, int((~known).sum()))
    return StreamCalls.of(process=process, **{ours: rows[theirs] for ours, theirs in columns.items()}).filter(known)


def allocations_table(events: Columns) -> Allocations:
    """What allocators did on GPUs; without any, on the CPU."""
    on_device = events["device_type"] > 0
    rows = np.flatnonzero(on_device if on_device.any() else events["allocated"] != 0)
    rows = rows[np.argsort(events["start"][rows], kind="stable")]
    columns = {"time_ns": "start", "device": "device_id", "bytes": "allocated", "total_bytes": "total"}
    columns |= {name: name for name in ("process", "thread", "address")}
    return Allocations.of(**{ours: events[theirs][rows] for ours, theirs in columns.items()})


_KINDS = {KERNEL: tables.KERNEL, MEMCPY: tables.MEMCPY, MEMSET: tables.MEMSET}
_SAME = {"device": "device", "context": "context", "stream": "stream", "correlation_id": "correlation"}
_OF_KERNELS = {f"{size}_{axis}": f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"}
_OF_KERNELS |= {"registers": "registers", "collective": "collective"}
_LABELS = {MEMCPY: "[CUDA memcpy {}]", MEMSET: "[CUDA memset]"}
_PAGEABLE = "Pageable"


def device_work(
    events: dict[str, Columns], launches: Launches, threads: Threads, names: dict[str, int], counters: LossCounters
) -> Work:
    """All GPU activities; their short names are added to ``names``, by row, and an unknown process is -1."""
    parts = []
    for kind in DEVICE_WORK:
        rows = events[kind]
        process = _processes_of(rows["correlation"], launches, threads)
        counters.add("kernels", PROCESS_UNKNOWN, int((process < 0).sum()) if threads.process_pid.size else 0)
        columns = {"kind": np.full(process.size, _KINDS[kind], dtype=np.int8), "process": process}
        columns |= {"start_ns": rows["start"], "end_ns": rows["end"], "full_name": rows["name"]}
        shared = _SAME | (_OF_KERNELS if kind == KERNEL else {"bytes": "bytes"})
        columns |= {ours: _column(rows[theirs], ours) for ours, theirs in shared.items()}
        # Kineto writes 0 where there is no CUDA graph.
        columns |= {f"{name}_id": np.where(rows[name] > 0, rows[name], -1) for name in ("graph", "graph_node")}
        parts.append(Work.of(**columns, annotation=rows["annotation"], **_named(kind, rows["name"], names)))
    return Work.concat(parts)


def _column(values: Ints, name: str) -> Ints:
    """Numbers that fit into their column; -1 for others."""
    return np.where((values >= 0) & (values <= np.iinfo(Work.dtype(name)).max), values, -1)


def _named(kind: str, name: Ints, names: dict[str, int]) -> dict[str, Ints | Flags]:
    """The columns that names tell."""
    used, full = np.unique(name).tolist(), list(names)
    short, direction = (np.full(len(full) + 1, -1, dtype=np.int64) for _ in range(2))
    for row in used:
        direction[row] = direction_of(full[row])
        text = short_name(full[row]) if kind == KERNEL else _LABELS[kind].format(COPY_KINDS[direction[row]])
        short[row] = names.setdefault(text, len(names))
    columns: dict[str, Ints | Flags] = {"name": short[name]}
    if kind == MEMCPY:
        pageable = [row for row in used if _PAGEABLE in full[row]]
        columns |= {"copy_kind": direction[name], "pageable": np.isin(name, pageable)}
    return columns


def _processes_of(correlation: Ints, launches: Launches, threads: Threads) -> Ints:
    """The process of every kernel: the only one, or the only one with an API call of its correlation id; or -1."""
    processes = threads.process_pid.size
    if processes <= 1:
        return np.full(correlation.size, processes - 1, dtype=np.int64)
    calls = grouped((launches.correlation_id,))
    owner = agreed(calls.group, threads.process[launches.thread], calls.first.size)
    return lookup(owner, positions(correlation, launches.correlation_id[calls.first]))


def forward_threads(operators: Columns, flows: Columns, process: Rows) -> Ints:
    """For every operator the row of the thread that made it; -1 if it is no node, or the trace does not record it.

    Where one number is all that a process has, and no flow, the trace shows no more than the sequence numbers do.

    ``flows`` are the ends of flows from the forward to the backward pass.
    """
    made_on = np.full(operators["start"].size, -1, dtype=np.int64)
    nodes = np.flatnonzero(operators["forward_thread"] > 0)
    if not nodes.size:
        return made_on
    of_process = process[operators["thread"][nodes]]
    numbers = grouped((of_process, operators["forward_thread"][nodes]))
    start_thread, end_thread, end_ns = _flows(flows)
    # A flow ends in the event of a node that begins at that time: the one inside its evaluation.
    places = grouped((np.append(operators["thread"][nodes], end_thread), np.append(operators["start"][nodes], end_ns)))
    node_place, flow_place = places.group[: nodes.size], places.group[nodes.size :]
    flow_number = agreed(node_place, numbers.group, places.first.size)[flow_place]
    known = (flow_number >= 0) & (process[start_thread] == process[end_thread])
    thread = agreed(np.where(known, flow_number, -1), start_thread, numbers.first.size, tables.NOT_RECORDED)
    several = np.bincount(of_process[numbers.first])[of_process[numbers.first]] > 1
    thread[~several & (thread == tables.NOT_RECORDED)] = -1
    made_on[nodes] = thread[numbers.group]
    return made_on


def _flows(flows: Columns) -> tuple[Rows, Rows, Ints]:
    thread, begins = flows["thread"], flows["begins"].astype(bool)
    ids, first, times = np.unique(flows["id"][begins], return_index=True, return_counts=True)
    start_thread = thread[begins][first[times == 1]]
    at = positions(flows["id"][~begins], ids[times == 1])
    found = at >= 0
    return start_thread[at[found]], thread[~begins][found], flows["start"][~begins][found]


def with_stacks(launches: Launches, functions: dict[str, Ints], lines: Sequence[str]) -> tuple[Launches, list[str]]:
    """The launches with the functions around them on their threads, and the distinct stacks of these."""
    if not functions["start"].size:
        return launches, []
    threads = [functions["thread"]] * 2 + [launches.thread] * 2
    start, end, begun, ended = one_axis(
        threads, [functions["start"], functions["end"], launches.start_ns, launches.end_ns]
    )
    around = np.flatnonzero(np.searchsorted(begun, start) < np.searchsorted(begun, end, side="right"))
    order = around[nesting_order(start[around], end[around])]
    start, end, line = start[order], end[order], functions["name"][order]
    parent, _ = parents(start, end)
    inner = innermost(start, end, parent, begun, ended)
    kind, used = _same_stacks(line, parent), np.unique(inner[inner >= 0])
    kinds, first = np.unique(kind[used], return_index=True)
    texts: dict[str, int] = {}
    of_kind = np.full(kind.size + 1, -1, dtype=np.int64)
    for number, row in zip(kinds.tolist(), used[first].tolist(), strict=True):
        text = stack_text(_upwards(row, line, parent, lines, deepest(kinds.size)))
        of_kind[number] = texts.setdefault(text, len(texts))
    return replace(launches, stack=of_kind[lookup(kind, inner)]), list(texts)


def _same_stacks(line: Ints, parent: Rows) -> Ints:
    """A number for each function, which those share that have equal lines above them: twice as many each round."""
    kind, above = grouped((line,)).group, parent
    while bool((above >= 0).any()):
        kind = grouped((kind, lookup(kind, above))).group
        above = lookup(above, above)
    return kind


def _upwards(row: int, line: Ints, parent: Rows, lines: Sequence[str], most: int) -> list[str]:
    stack: list[str] = []
    while row >= 0 and len(stack) < most:
        stack.append(lines[line[row]])
        row = int(parent[row])
    return stack


def annotated_texts(text: Rows, texts: dict[str, int], annotations: Iterable[tuple[int, ...]]) -> Rows:
    """Rows of the texts of ranges, added to ``texts``; those named as annotated modules, or above these, are calls.

    torch marks work of CUDA graphs with modules during the graph capture (``torch.cuda._graph_annotations``) and merges
    them into the trace later, as its arguments ``module_fqn``, ``module_type`` and ``name``.
    """
    written, calls = [*texts], dict[str, str]()
    for one in sorted({written[row] for rows in annotations for row in rows}):
        marker = ANNOTATED_MODULES.parse(one)
        path = marker.path if isinstance(marker, ModuleMarker) else ""
        calls[path] = one
        while path := path.rpartition(".")[0]:
            calls.setdefault(path, annotated_text(path, ""))
    row = np.arange(len(written))
    for name in sorted(calls.keys() & texts.keys()):
        row[texts[name]] = texts.setdefault(calls[name], len(texts))
    return row[text]


def annotated_calls(
    work: Work, launches: Launches, process: Rows, annotations: Sequence[tuple[int, ...]]
) -> dict[str, Ints]:
    """Ranges of calls of annotated modules: inside the API call that launched their work, in the order in which it ran.

    There are none in an API call that is too short to hold all of its own.
    """
    rows = np.flatnonzero(work.annotation >= 0)
    launch = _launch_of(work, rows, launches, process)
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    size = np.array([*map(len, annotations), 0])[work.annotation[rows]]
    text = np.array([one for row in work.annotation[rows].tolist() for one in annotations[row]], dtype=np.int64)
    calls = grouped((np.repeat(launch, size), text))
    launch, text = np.repeat(launch, size)[calls.first], text[calls.first]
    order = np.lexsort((minima(calls.group, np.repeat(work.start_ns[rows], size), launch.size), launch))
    launch, text = launch[order], text[order]
    _, first, of, number = np.unique(launch, return_index=True, return_inverse=True, return_counts=True)
    place, number = np.arange(launch.size) - first[of], number[of]
    # One nanosecond is left at both ends, so that no range holds the API call itself.
    start_ns, dur_ns = launches.start_ns[launch] + 1, launches.end_ns[launch] - launches.start_ns[launch] - 2
    start, end = (start_ns + np.floor_divide(dur_ns * at, number, dtype=np.int64) for at in (place, place + 1))
    fits = np.flatnonzero(dur_ns >= number)
    columns: dict[str, Ints] = {"start": start, "end": end, "thread": launches.thread[launch], "text": text}
    return {name: column[fits] for name, column in columns.items()}


def _launch_of(work: Work, rows: Rows, launches: Launches, process: Rows) -> Rows:
    processes = np.append(process[launches.thread], work.process[rows])
    both = grouped((processes, np.append(launches.correlation_id, work.correlation_id[rows])))
    found = both.first[both.group[len(launches) :]]
    return np.where(found < len(launches), found, -1)
