"""Graph captures that were recorded apart from the report: what went on meanwhile becomes part of its recording.

Taken over are the launches that went into a graph, the calls around them that identify the kind of graph, and the
ranges that were open. They are moved to just before the report, unless they came after it, and are on threads of their
own, so that nothing of the report's changes. Everything else that was recorded there is no part of the report.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import GRAPH_LAUNCH, is_update, roles_of
from tracekit.graphs.captures import Windows, clone_chains, graph_captures_of
from tracekit.recording.axis import ThreadAxis, thread_axis
from tracekit.recording.tables import Allocations, Launches, Ranges, Recording, Threads, Work

_LAST = np.iinfo(np.int64).max


class Captured(NamedTuple):
    """What of a recording went on during its graph captures.

    Attributes:
        recording: The recording, with these launches, ranges and nodes, and calls that changed graphs later; no work.
        around: Which ranges were open before a graph capture began and after it had ended.
    """

    recording: Recording
    around: Flags

    @property
    def processes(self) -> Rows:
        """Rows of the processes that captured."""
        return np.unique(self.recording.threads.process[self.recording.launches.thread])

    def texts(self, *, around: bool = False) -> Rows:
        """Rows of the texts of its ranges, all of which have one, or only of those around graph captures."""
        text = self.recording.ranges.text
        return np.unique(text[self.around] if around else text)


def captured_in(recording: Recording, launch: Rows) -> Captured | None:
    """Finds what went on during graph captures; None if there is none."""
    axis = thread_axis(recording)
    works = np.zeros(len(recording.launches) + 1, dtype=bool)
    works[launch] = True
    windows = graph_captures_of(recording, axis, clone_chains(recording), works[:-1]).windows
    captured = np.flatnonzero((windows.at(axis.launch_start, axis.launch_end) >= 0) & ~works[:-1])
    if not captured.size:
        return None
    process = recording.threads.process[recording.launches.thread]
    updates = np.flatnonzero(is_update(recording) & np.isin(process, process[captured]))
    rows, around = _ranges(axis, windows)
    part = replace(
        recording,
        launches=recording.launches.take(np.union1d(captured, updates)),
        ranges=recording.ranges.take(rows),
        work=Work.empty(),
        allocations=Allocations.empty(),
        inside_ns=None,
    )
    return Captured(part, around)


def _ranges(axis: ThreadAxis, windows: Windows) -> tuple[Rows, Flags]:
    begin, end = np.append(windows.begin, _LAST), np.append(windows.end, _LAST)
    later = begin[np.searchsorted(windows.end, axis.range_start, side="right")]
    rows = np.flatnonzero(axis.ends_here & (later < axis.range_end))
    return rows, np.asarray(end[np.searchsorted(windows.begin, axis.range_start[rows])] <= axis.range_end[rows])


def texts_around_replays(recording: Recording) -> Rows:
    """Rows of the texts of ranges in which a graph was launched."""
    axis = thread_axis(recording)
    at = np.sort(axis.launch_start[roles_of(recording) == GRAPH_LAUNCH])
    holds = np.searchsorted(at, axis.range_end) > np.searchsorted(at, axis.range_start)
    texts = np.unique(recording.ranges.text[holds & axis.ends_here])
    return texts[texts >= 0]


def joined(report: Recording, captured: Captured, process: Rows, texts: Sequence[str | None]) -> Recording:
    """The report's recording with what went on during graph captures.

    ``process`` is the row in the report of every process of the other recording; those with -1 are left out.
    ``texts`` are what stands for the other's texts; ranges of those with None are left out.
    """
    other = captured.recording
    threads, thread = _threads(report.threads, other.threads, process[other.threads.process])
    of_text, known_texts = _merged(report.texts, texts)
    of_name, names = _merged(report.names, other.names)
    shift = _shift(report, other)
    known_text = (other.ranges.text < 0) | (lookup(of_text, other.ranges.text) >= 0)
    ranges = other.ranges.filter((thread[other.ranges.thread] >= 0) & known_text)
    launches = other.launches.filter(thread[other.launches.thread] >= 0)
    # Ids of calls are those of the other session; work of the report has nothing to do with them.
    nothing = np.zeros(len(launches), dtype=np.int64)
    launches = replace(launches, name=lookup(of_name, launches.name), kernel=lookup(of_name, launches.kernel))
    launches = replace(launches, thread=thread[launches.thread], correlation_id=nothing, stack=nothing - 1)
    launches = replace(launches, start_ns=launches.start_ns + shift, end_ns=launches.end_ns + shift)
    ranges = replace(ranges, thread=thread[ranges.thread], text=lookup(of_text, ranges.text))
    ranges = replace(ranges, start_ns=ranges.start_ns + shift, end_ns=ranges.end_ns + shift)
    return replace(
        report,
        threads=threads,
        # Threads of the other recording come after all of the report, so the rows stay in order.
        ranges=Ranges.concat([report.ranges, ranges]),
        launches=Launches.concat([report.launches, launches]),
        texts=known_texts,
        names=names,
        attached_threads=report.attached_threads | {*thread[thread >= 0].tolist()},
        graph_captures=(*report.graph_captures, other.source),
    )


def _merged(known: Sequence[str], others: Sequence[str | None]) -> tuple[Ints, list[str]]:
    rows = {text: row for row, text in enumerate(known)}
    of_other = [-1 if text is None else rows.setdefault(text, len(rows)) for text in others]
    return np.array(of_other, dtype=np.int64), list(rows)


def _threads(report: Threads, other: Threads, process: Rows) -> tuple[Threads, Rows]:
    """The threads of both, and the row of each of the other's; -1 for those of processes that are not taken."""
    taken = np.flatnonzero(process >= 0)
    row = np.full(process.size, -1, dtype=np.int64)
    row[taken] = report.tid.size + np.arange(taken.size)
    pid, tid = np.append(report.pid, other.pid[taken]), np.append(report.tid, other.tid[taken])
    return Threads(pid, tid, np.append(report.process, process[taken]), report.process_pid), row


def _shift(report: Recording, other: Recording) -> int:
    """What to add to times of the other recording: what was captured after the report made none of its graphs."""
    ours, theirs = report.source.started_utc_ns, other.source.started_utc_ns
    end, last = (
        max(int(table.end_ns.max(initial=0)) for table in tables)
        for tables in ((report.launches, report.work), (other.launches, other.ranges))
    )
    return theirs - ours if ours and theirs and theirs - ours >= end else -1 - last
