"""Graph captures that were recorded apart from the report: what went on meanwhile becomes part of its recording.

Taken over are the launches that went into a graph, the calls around them that tell what kind of graph it is, and the
ranges that were open. They keep their times where both clocks are known and do not contradict each other, else they lie
before the report. They stand on threads of their own, so that nothing of the report's changes. Everything else that was
recorded there is no part of the report.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers, nullable
from tracekit.arrays.lookups import lookup
from tracekit.graphs.api_calls import GRAPH_LAUNCH, roles_of
from tracekit.graphs.graph_captures import graph_captures_of
from tracekit.graphs.nodes import lineage_of
from tracekit.graphs.updates import is_update
from tracekit.recording.axis import thread_axis
from tracekit.recording.tables import ALLOCATIONS, GRAPH_NODES, WORK, Threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.windows import Windows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording


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
        return np.unique(self.recording.threads.process[integers(self.recording.launches, "thread")])

    def texts(self, *, around: bool = False) -> Rows:
        """Rows of the texts of its ranges, or only of those around graph captures; without those that have none."""
        text = integers(self.recording.ranges, "text")
        texts = np.unique(text[self.around] if around else text)
        return texts[texts >= 0]


def captured_in(recording: Recording, launch: Rows) -> Captured | None:
    """Finds what went on during graph captures; None if there is none.

    Args:
        recording: A recording.
        launch: Row of the launch of every piece of work, or -1.
    """
    axis = thread_axis(recording)
    works = np.zeros(recording.launches.num_rows + 1, dtype=bool)
    works[launch] = True
    windows = graph_captures_of(recording, axis, lineage_of(recording), works[:-1]).windows
    node_launch, node_id = _nodes(recording, launch)
    inside = windows.at(axis.launch_start, axis.launch_end) >= 0
    captured = np.union1d(np.flatnonzero(inside & ~works[:-1]), node_launch)
    if not captured.size:
        return None
    process = recording.threads.process[integers(recording.launches, "thread")]
    updates = np.flatnonzero(is_update(recording) & np.isin(process, process[captured]))
    rows, around = _ranges(axis, windows, node_launch)
    part = replace(
        recording,
        launches=recording.launches.take(pa.array(np.union1d(captured, updates))),
        ranges=recording.ranges.take(pa.array(rows)),
        graph_nodes=_node_records(recording, node_launch, node_id),
        work=WORK.empty(),
        allocations=ALLOCATIONS.empty(),
        inside_ns=None,
    )
    return Captured(part, around, _first_replays(recording, launch))


def _nodes(recording: Recording, launch: Rows) -> tuple[Rows, Ints]:
    """Launches whose own work names a node: they became it. A launch of a graph runs nodes that others became."""
    column = recording.work.column("graph_node_id")
    own = np.append(roles_of(recording) != GRAPH_LAUNCH, False)[launch]
    rows = np.flatnonzero(np.asarray(column.is_valid()) & own)
    launches, first = np.unique(launch[rows], return_index=True)
    return launches, integers(recording.work, "graph_node_id")[rows[first]]


def _node_records(recording: Recording, launch: Rows, node_id: Ints) -> pa.Table:
    """Records of nodes, each made when its launch began."""
    return GRAPH_NODES.table(
        {
            "start_ns": integers(recording.launches, "start_ns")[launch],
            "thread": integers(recording.launches, "thread")[launch].astype(np.int32),
            "node_id": node_id,
            "original_node_id": pa.nulls(launch.size, pa.int64()),
        }
    )


def _ranges(axis: ThreadAxis, windows: Windows, node_launch: Rows) -> tuple[Rows, Flags]:
    """Rows of the ranges that were open during a graph capture, and which of them hold one."""
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
    rows = np.flatnonzero(by_graph & np.asarray(work.column("graph_id").is_valid()))
    start_ns = integers(recording.launches, "start_ns")[launch[rows]]
    first: dict[tuple[int, int], int] = {}
    columns = (integers(work, name)[rows].tolist() for name in ("process", "graph_id"))
    for process, graph, at in zip(*columns, start_ns.tolist(), strict=True):
        first[process, graph] = min(at, first.get((process, graph), at))
    return first


def texts_around_replays(recording: Recording) -> Rows:
    """Rows of the texts of ranges in which a graph was launched."""
    axis = thread_axis(recording)
    at = np.sort(axis.launch_start[roles_of(recording) == GRAPH_LAUNCH])
    holds = np.searchsorted(at, axis.range_end) > np.searchsorted(at, axis.range_start)
    texts = np.unique(integers(recording.ranges, "text")[holds & axis.ends_here])
    return texts[texts >= 0]


def joined(report: Recording, captured: Captured, process: Rows, texts: Sequence[str | None]) -> Recording:
    """The report's recording with what went on during graph captures.

    Args:
        report: The report's recording.
        captured: What went on during graph captures.
        process: For every process of the other recording its row in the report, or -1; nothing of others is taken.
        texts: For every text of the other recording the one that stands for it; None where its ranges are left out.
    """
    other = captured.recording
    threads, thread = _threads(report.threads, other.threads, process[other.threads.process])
    of_text, known_texts = _merged(report.texts, texts)
    of_name, names = _merged(report.names, other.names)
    launches, ranges, nodes = (
        table.filter(pa.array(thread[integers(table, "thread")] >= 0))
        for table in (other.launches, other.ranges, other.graph_nodes)
    )
    text = integers(ranges, "text")
    ranges = ranges.filter(pa.array((text < 0) | (np.append(of_text, -1)[text] >= 0)))
    shift = _shift(report, other)
    first = {
        (int(process[one]), graph): at + shift
        for (one, graph), at in captured.first_replays.items()
        if process[one] >= 0
    }
    called = {"thread": thread, "name": of_name, "kernel": of_name}
    return replace(
        report,
        threads=threads,
        ranges=_below(report.ranges, _changed(ranges, {"thread": thread, "text": of_text}, shift)),
        # Ids of calls are those of the other session; work of the report has nothing to do with them.
        launches=_below(report.launches, _without_ids(_changed(launches, called, shift))),
        graph_nodes=_below(report.graph_nodes, _changed(nodes, {"thread": thread}, shift)),
        texts=known_texts,
        names=names,
        threads_beside=report.threads_beside | {*thread[thread >= 0].tolist()},
        graph_captures=(*report.graph_captures, other.source),
        first_replays=_earliest(report.first_replays, first),
    )


def _merged(known: Sequence[str], others: Sequence[str | None]) -> tuple[Ints, list[str]]:
    """Rows of the other texts among all together, -1 for None; and all together."""
    rows = {text: row for row, text in enumerate(known)}
    of_other = [-1 if text is None else rows.setdefault(text, len(rows)) for text in others]
    return np.array(of_other, dtype=np.int64), list(rows)


def _threads(report: Threads, other: Threads, process: Rows) -> tuple[Threads, Rows]:
    """All threads, and the row there of each of the other's; those of other processes have none."""
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

    No process is profiled twice at once: where the sessions seem to overlap, their clocks tell nothing.
    """
    tables = (other.launches, other.ranges)
    first = min(int(integers(table, "start_ns").min(initial=0)) for table in tables)
    last = max(int(integers(table, "end_ns").max(initial=0)) for table in tables)
    ours, theirs = report.source.started_utc_ns, other.source.started_utc_ns
    if ours is not None and theirs is not None:
        shift = theirs - ours
        if last + shift <= 0 or first + shift >= _end(report):
            return shift
    return -1 - last


def _end(recording: Recording) -> int:
    return max(int(integers(table, "end_ns").max(initial=0)) for table in (recording.launches, recording.work))


def _changed(table: pa.Table, rows: dict[str, Ints], shift: int) -> pa.Table:
    """The table with rows of other tables replaced, and times shifted."""
    for name, row in rows.items():
        type_ = table.schema.field(name).type
        values = lookup(row, integers(table, name))
        column = nullable(values, type_) if table.schema.field(name).nullable else pa.array(values, type_)
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    for name in {"start_ns", "end_ns"}.intersection(table.schema.names):
        values = integers(table, name) + shift
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(values))
    return table


def _without_ids(launches: pa.Table) -> pa.Table:
    at, field = launches.schema.get_field_index("correlation_id"), launches.schema.field("correlation_id")
    return launches.set_column(at, field, pa.array(np.zeros(launches.num_rows, dtype=np.int64)))


def _below(table: pa.Table, more: pa.Table) -> pa.Table:
    """Both tables; the threads of the second one come after all of the first."""
    return pa.concat_tables([table, more.cast(table.schema)]).combine_chunks()


def _earliest(one: Mapping[tuple[int, int], int], other: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    return {key: min(part[key] for part in (one, other) if key in part) for key in {**one, **other}}
