"""Graph captures that were recorded apart from the report: what went on meanwhile becomes part of its recording.

Taken over are the launches that went into a graph, the calls around them that identify the kind of graph, and the
ranges that were open. They keep their times where both clocks are known and do not contradict each other, else they lie
before the report. They are on threads of their own, so that nothing of the report's changes. Everything else that was
recorded there is no part of the report.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import BEGINS_CAPTURE, ENDS_CAPTURE, GRAPH_LAUNCH, is_update, launches_named, roles_of
from tracekit.graphs.captures import Windows, graph_captures_of, submissions_of
from tracekit.graphs.nodes import clone_chains
from tracekit.recording.axis import ThreadAxis, thread_axis
from tracekit.recording.tables import NO_TIME, Allocations, GraphNodes, Launches, Ranges, Recording, Threads, Work

_EDGES = ("cudaStreamBeginCapture", "cudaStreamEndCapture")
_INSTANTIATES = ("cudaGraphInstantiate", "cuGraphInstantiate", "hipGraphInstantiate")


class Captured(NamedTuple):
    """What of a recording went on during its graph captures.

    Attributes:
        recording: The recording, with these launches, ranges and nodes, and calls that changed graphs later; no work.
        around: Which ranges were open before a graph capture began and after it had ended.
        first_replays: When each graph was first replayed, by (process, graph).
    """

    recording: Recording
    around: Flags
    first_replays: dict[tuple[int, int], int]

    @property
    def processes(self) -> Rows:
        """Rows of the processes that captured."""
        return np.unique(self.recording.threads.process[self.recording.launches.thread])

    def texts(self, *, around: bool = False) -> Rows:
        """Rows of the texts of its ranges, or only of those around graph captures; without those that have none."""
        text = self.recording.ranges.text
        texts = np.unique(text[self.around] if around else text)
        return texts[texts >= 0]


def captured_in(recording: Recording, launch: Rows) -> Captured | None:
    """Finds what went on during graph captures; None if there is none."""
    axis = thread_axis(recording)
    works = np.zeros(len(recording.launches) + 1, dtype=bool)
    works[launch] = True
    windows = graph_captures_of(recording, axis, clone_chains(recording), works[:-1]).windows
    node_launch, node_id = _nodes(recording, launch)
    inside = windows.at(axis.launch_start, axis.launch_end) >= 0
    captured = np.union1d(np.flatnonzero(inside & ~works[:-1]), node_launch)
    if not captured.size:
        return None
    process = recording.threads.process[recording.launches.thread]
    updates = np.flatnonzero(is_update(recording) & np.isin(process, process[captured]))
    rows, around = _ranges(axis, windows, node_launch)
    part = replace(
        recording,
        launches=recording.launches.take(np.union1d(captured, updates)),
        ranges=recording.ranges.take(rows),
        # Each node was made when its launch began.
        graph_nodes=GraphNodes.of(
            start_ns=recording.launches.start_ns[node_launch],
            thread=recording.launches.thread[node_launch],
            node_id=node_id,
        ),
        work=Work.empty(),
        allocations=Allocations.empty(),
        inside_ns=None,
    )
    return Captured(part, around, _first_replays(recording, launch))


def _nodes(recording: Recording, launch: Rows) -> tuple[Rows, Ints]:
    own = np.append(roles_of(recording) != GRAPH_LAUNCH, False)[launch]
    rows = np.flatnonzero((recording.work.graph_node_id != -1) & own)
    launches, first = np.unique(launch[rows], return_index=True)
    return launches, recording.work.graph_node_id[rows[first]]


def _ranges(axis: ThreadAxis, windows: Windows, node_launch: Rows) -> tuple[Rows, Flags]:
    begin = np.concatenate((windows.begin, axis.launch_start[node_launch]))
    end = np.concatenate((windows.end, axis.launch_end[node_launch]))
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    later = np.append(begin, np.iinfo(np.int64).max)[np.searchsorted(end, axis.range_start, side="right")]
    rows = np.flatnonzero(axis.ends_here & (later < axis.range_end))
    ends = np.append(end, np.iinfo(np.int64).max)[np.searchsorted(begin, axis.range_start[rows])]
    return rows, np.asarray(ends <= axis.range_end[rows])


def _first_replays(recording: Recording, launch: Rows) -> dict[tuple[int, int], int]:
    work = recording.work
    by_graph = np.append(roles_of(recording) == GRAPH_LAUNCH, False)[launch]
    rows = np.flatnonzero(by_graph & (work.graph_id != -1))
    start_ns = recording.launches.start_ns[launch[rows]]
    first: dict[tuple[int, int], int] = {}
    for process, graph, at in zip(
        work.process[rows].tolist(), work.graph_id[rows].tolist(), start_ns.tolist(), strict=True
    ):
        first[process, graph] = min(at, first.get((process, graph), at))
    return first


def texts_around_replays(recording: Recording) -> Rows:
    """Rows of the texts of ranges in which a graph was launched."""
    axis = thread_axis(recording)
    at = np.sort(axis.launch_start[roles_of(recording) == GRAPH_LAUNCH])
    holds = np.searchsorted(at, axis.range_end) > np.searchsorted(at, axis.range_start)
    texts = np.unique(recording.ranges.text[holds & axis.ends_here])
    return texts[texts >= 0]


def joined(report: Recording, captured: Captured, process: Rows, texts: Sequence[str | None]) -> Recording:
    """The report's recording with what went on during graph captures.

    ``process`` is the row in the report of every process of the other recording; nothing is taken of those with -1.
    ``texts`` are what stands for the other's texts; ranges of those with None are left out.
    """
    other = captured.recording
    threads, thread = _threads(report.threads, other.threads, process[other.threads.process])
    of_text, known_texts = _merged(report.texts, texts)
    of_name, names = _merged(report.names, other.names)
    shift = _shift(report, other)
    ranges = other.ranges.filter(thread[other.ranges.thread] >= 0)
    ranges = ranges.filter((ranges.text < 0) | (lookup(of_text, ranges.text) >= 0))
    ranges = replace(ranges, thread=thread[ranges.thread], text=lookup(of_text, ranges.text))
    launches = other.launches.filter(thread[other.launches.thread] >= 0)
    # Ids of calls are those of the other session; work of the report has nothing to do with them.
    nothing = np.zeros(len(launches), dtype=np.int64)
    launches = replace(launches, thread=thread[launches.thread], correlation_id=nothing)
    launches = replace(launches, name=lookup(of_name, launches.name), kernel=lookup(of_name, launches.kernel))
    ranges = replace(ranges, start_ns=ranges.start_ns + shift, end_ns=ranges.end_ns + shift)
    launches = replace(launches, start_ns=launches.start_ns + shift, end_ns=launches.end_ns + shift)
    nodes = other.graph_nodes.filter(thread[other.graph_nodes.thread] >= 0)
    start_ns = np.where(nodes.start_ns == NO_TIME, NO_TIME, nodes.start_ns + shift)
    nodes = replace(nodes, start_ns=start_ns, thread=thread[nodes.thread])
    first_replays = dict(report.first_replays)
    for (one, graph), at in captured.first_replays.items():
        if (row := int(process[one])) >= 0:
            first_replays[row, graph] = min(at + shift, first_replays.get((row, graph), at + shift))
    return replace(
        report,
        threads=threads,
        # Threads of the other recording come after all of the report, so the rows stay in order.
        ranges=Ranges.concat([report.ranges, ranges]),
        launches=Launches.concat([report.launches, launches]),
        graph_nodes=GraphNodes.concat([report.graph_nodes, nodes]),
        texts=known_texts,
        names=names,
        attached_threads=report.attached_threads | {*thread[thread >= 0].tolist()},
        graph_captures=(*report.graph_captures, other.source),
        first_replays=first_replays,
    )


def _merged(known: Sequence[str], others: Sequence[str | None]) -> tuple[Ints, list[str]]:
    rows = {text: row for row, text in enumerate(known)}
    of_other = [-1 if text is None else rows.setdefault(text, len(rows)) for text in others]
    return np.array(of_other, dtype=np.int64), list(rows)


def _threads(report: Threads, other: Threads, process: Rows) -> tuple[Threads, Rows]:
    taken = np.flatnonzero(process >= 0)
    row = np.full(process.size, -1, dtype=np.int64)
    row[taken] = report.tid.size + np.arange(taken.size)
    pid, tid, of_process = (
        np.concatenate(both)
        for both in ((report.pid, other.pid[taken]), (report.tid, other.tid[taken]), (report.process, process[taken]))
    )
    return Threads(pid, tid, of_process, report.process_pid), row


def _shift(report: Recording, other: Recording) -> int:
    """What to add to times of the other recording, so that both count from one moment.

    No process is profiled twice at once: where the sessions seem to overlap, their clocks show nothing.
    """
    tables = (other.launches, other.ranges)
    first = min(int(table.start_ns.min(initial=0)) for table in tables)
    last = max(int(table.end_ns.max(initial=0)) for table in tables)
    end = max(int(report.launches.end_ns.max(initial=0)), int(report.work.end_ns.max(initial=0)))
    ours, theirs = report.source.started_utc_ns, other.source.started_utc_ns
    if ours is not None and theirs is not None:
        shift = theirs - ours
        if last + shift <= 0 or first + shift >= end:
            return shift
    return -1 - last


def infer_capture_bounds(recording: Recording, launch: Rows) -> Recording:
    """The recording of a graph capture with calls that begin and end it, where it has none.

    In a trace that is known to be one of a graph capture, launches that put no work on the device were captured: those
    on one thread, up to a launch that did work or to the call that makes the graph executable, are one graph.
    """
    role = roles_of(recording)
    if ((role == BEGINS_CAPTURE) | (role == ENDS_CAPTURE)).any():
        return recording
    works = np.zeros(len(recording.launches) + 1, dtype=bool)
    works[launch] = True
    runs = _runs(recording, works[:-1])
    if not runs:
        return recording
    first, last = (np.array(rows, dtype=np.int64) for rows in zip(*((run[0], run[-1]) for run in runs), strict=True))
    begin_ns = recording.launches.start_ns[first] - 1
    end_ns = recording.launches.end_ns[last] + 1
    name = len(recording.names) + np.repeat(np.arange(2), first.size)
    at = np.concatenate((begin_ns, end_ns))
    edges = Launches.of(
        start_ns=at,
        end_ns=at,
        thread=np.tile(recording.launches.thread[first], 2),
        correlation_id=np.zeros(at.size, dtype=np.int64),
        name=name,
    )
    both = Launches.concat([recording.launches, edges])
    launches = both.in_order(nesting_order(*one_axis([both.thread, both.thread], [both.start_ns, both.end_ns])))
    return replace(recording, launches=launches, names=[*recording.names, *_EDGES])


def _runs(recording: Recording, works: Flags) -> list[list[int]]:
    submissions = submissions_of(recording, thread_axis(recording), roles_of(recording), works)
    instantiates = np.flatnonzero(launches_named(recording, _INSTANTIATES))
    rows = np.concatenate((submissions.row, instantiates))
    captured = np.concatenate((submissions.without_work, np.zeros(instantiates.size, dtype=bool)))
    order = np.argsort(rows, kind="stable")
    thread = recording.launches.thread
    runs: list[list[int]] = [[]]
    for row, is_captured in zip(rows[order].tolist(), captured[order].tolist(), strict=True):
        if runs[-1] and (not is_captured or thread[row] != thread[runs[-1][-1]]):
            runs.append([])
        if is_captured:
            runs[-1].append(row)
    return [run for run in runs if run]
