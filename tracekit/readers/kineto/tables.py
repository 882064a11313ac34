"""Columns as tables of a recording: ranges and launches, device work, autograd's threads, annotated modules."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import agreed, grouped, minima
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import NEVER_ENDED, NO_CORRELATION_ID, OTHER_EVENT, TOO_LARGE
from tracekit.kineto.arguments import direction_of
from tracekit.kineto.columns import KERNEL, MEMCPY, MEMSET, Columns
from tracekit.markers.base import ModuleMarker
from tracekit.markers.torch_texts import ANNOTATED_MODULES, annotated_text
from tracekit.nsight.tables import short_name
from tracekit.recording import tables
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import NOT_RECORDED, PUSH_POP, Allocations, Launches, Ranges, StreamCalls, Threads, Work
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
    start, end, thread, text, never_ended, made_on = (
        np.concatenate([part[name] for part in rows]) for name in ("start", "end", "thread", "text", "open", "made_on")
    )
    counters.add("ranges", NEVER_ENDED, int(never_ended.sum()))
    ranges = Ranges.of(
        start_ns=start,
        end_ns=end,
        open=never_ended.astype(bool),
        kind=np.full(start.size, PUSH_POP, dtype=np.int8),
        thread=thread,
        text=text,
        forward_thread=made_on,
    )
    return ranges.in_order(_nested(start, end, thread))


def launches_table(calls: Columns, counters: LossCounters) -> Launches:
    """API calls."""
    linked = calls["correlation"] > 0
    counters.add("launches", NO_CORRELATION_ID, int((~linked).sum()))
    start, end, thread, name, correlation, kernel = (
        calls[column][linked] for column in ("start", "end", "thread", "name", "correlation", "kernel")
    )
    launches = Launches.of(
        start_ns=start, end_ns=end, thread=thread, correlation_id=correlation, name=name, kernel=kernel
    )
    return launches.in_order(_nested(start, end, thread))


def stream_calls_table(rows: Columns, process: Ints, counters: LossCounters) -> StreamCalls:
    """Waits for streams and events; Kineto does not write on which stream an event was recorded but here."""
    columns = _SAME | {"recorded_by": "recorded_by", "event_stream": "event_stream", "event_context": "context"}
    known = (rows["correlation"] > 0) & (process >= 0)
    counters.add("events", OTHER_EVENT, int((~known).sum()))
    return StreamCalls.of(process=process, **{ours: rows[theirs] for ours, theirs in columns.items()}).filter(known)


def allocations_table(events: Columns) -> Allocations:
    """What allocators did on GPUs; without any, on the CPU."""
    on_device = events["device_type"] > 0
    rows = np.flatnonzero(on_device if on_device.any() else events["bytes"] != 0)
    rows = rows[np.argsort(events["start"][rows], kind="stable")]
    columns = {"time_ns": "start", "device": "device_id", "total_bytes": "total"}
    columns |= {name: name for name in ("process", "thread", "address", "bytes")}
    return Allocations.of(**{ours: events[theirs][rows] for ours, theirs in columns.items()})


def _nested(start: Ints, end: Ints, thread: Ints) -> Ints:
    return nesting_order(*one_axis([thread, thread], [start, end]))


_KINDS = {KERNEL: tables.KERNEL, MEMCPY: tables.MEMCPY, MEMSET: tables.MEMSET}
_SAME = {"device": "device", "context": "context", "stream": "stream", "correlation_id": "correlation"}
_OF_KERNELS = {f"{size}_{axis}": f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"}
_OF_KERNELS |= {"registers": "registers", "collective": "collective"}
_PAGEABLE = "Pageable"
_INT32 = 2**31


def work_table(kind: str, rows: Columns, process: Ints, names: dict[str, int], counters: LossCounters) -> Work:
    """GPU activities of one kind; short names are added to ``names``, by row, and an unknown process is -1."""
    size = rows["start"].size
    columns = {"kind": np.full(size, _KINDS[kind], dtype=np.int8), "start_ns": rows["start"], "end_ns": rows["end"]}
    columns |= {"process": process, "full_name": rows["name"], "annotation": rows["annotation"]}
    shared = _SAME | (_OF_KERNELS if kind == KERNEL else {"bytes": "bytes"})
    columns |= {ours: _column(rows[theirs], ours, counters) for ours, theirs in shared.items()}
    # Kineto writes 0 where there is no CUDA graph.
    columns |= {f"{name}_id": np.where(rows[name] > 0, rows[name], -1) for name in ("graph", "graph_node")}
    return Work.of(**columns, **_named(kind, rows["name"], names))


def _column(values: Ints, name: str, counters: LossCounters) -> Ints:
    if Work.dtype(name) == np.int32:
        counters.add("values", TOO_LARGE, int((values >= _INT32).sum()))
        values = np.where(values < _INT32, values, -1)
    return np.where(values >= 0, values, -1)


def _named(kind: str, name: Ints, names: dict[str, int]) -> dict[str, Ints | Flags]:

    used = np.unique(name).tolist()
    full = list(names)
    directions = {row: direction_of(full[row]) for row in used} if kind == MEMCPY else {}
    short = np.full(len(full) + 1, -1, dtype=np.int64)
    for row in used:
        text = _short(kind, full[row], directions.get(row, 0))
        short[row] = names.setdefault(text, len(names))
    columns: dict[str, Ints | Flags] = {"name": short[name]}
    if directions:
        direction = np.zeros(len(full) + 1, dtype=np.int32)
        direction[list(directions)] = list(directions.values())
        columns["copy_kind"] = direction[name]
        columns["pageable"] = np.isin(name, [row for row in used if _PAGEABLE in full[row]])
    return columns


def _short(kind: str, name: str, direction: int) -> str:
    if kind == KERNEL:
        return short_name(name)
    return "[CUDA memset]" if kind == MEMSET else f"[CUDA memcpy {COPY_KINDS[direction]}]"


def processes_of(correlation: Ints, launches: Launches, thread_process: Ints, processes: int) -> Ints:
    """The process of every kernel: the only one, or the only one with an API call of its correlation id; or -1."""
    if processes <= 1:
        return np.full(correlation.size, processes - 1, dtype=np.int64)
    ids = launches.correlation_id
    process = thread_process[launches.thread]
    pairs = np.unique(np.stack((ids, process)), axis=1)
    known, first, count = np.unique(pairs[0], return_index=True, return_counts=True)
    owner = np.where(count == 1, pairs[1][first], -1)
    return lookup(owner, positions(correlation, known))


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
    thread = agreed(np.where(known, flow_number, -1), start_thread, numbers.first.size, NOT_RECORDED)
    several = np.bincount(of_process[numbers.first])[of_process[numbers.first]] > 1
    thread[~several & (thread == NOT_RECORDED)] = -1
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
    kind = _same_stacks(line, parent)
    kinds, first = np.unique(kind[np.unique(inner[inner >= 0])], return_index=True)
    texts: dict[str, int] = {}
    of_kind = np.full(kind.size + 1, -1, dtype=np.int64)
    for number, row in zip(kinds.tolist(), np.unique(inner[inner >= 0])[first].tolist(), strict=True):
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
    texts = [text for row in work.annotation[rows].tolist() for text in annotations[row]]
    calls = grouped((np.repeat(launch, size), np.array(texts, dtype=np.int64)))
    launch, text = np.repeat(launch, size)[calls.first], np.array(texts, dtype=np.int64)[calls.first]
    order = np.lexsort((minima(calls.group, np.repeat(work.start_ns[rows], size), launch.size), launch))
    launch, text = launch[order], text[order]
    _, first, of, size = np.unique(launch, return_index=True, return_inverse=True, return_counts=True)
    place, number = np.arange(launch.size) - first[of], size[of]
    # One nanosecond is left at both ends, so that no range holds the API call itself.
    start_ns, dur_ns = launches.start_ns[launch] + 1, launches.end_ns[launch] - launches.start_ns[launch] - 2
    start, end = (start_ns + np.floor_divide(dur_ns * at, number, dtype=np.int64) for at in (place, place + 1))
    fits = np.flatnonzero(dur_ns >= number)
    columns: dict[str, Ints] = {"start": start, "end": end, "thread": launches.thread[launch], "text": text}
    return {name: column[fits] for name, column in columns.items()}


def _launch_of(work: Work, rows: Rows, launches: Launches, process: Rows) -> Rows:
    both = grouped(
        (
            np.append(process[launches.thread], work.process[rows]),
            np.append(launches.correlation_id, work.correlation_id[rows]),
        )
    )
    found = both.first[both.group[len(launches) :]]
    return np.where(found < len(launches), found, -1)
