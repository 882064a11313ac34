"""Graph captures in traces of their own, as vLLM and SGLang record them when they start; here they join the report.

A trace belongs to the report if the same process captured that replays, and no rank contradicts it. Taken over are the
launches that went into a graph, the calls around them that identify the kind of graph, and the ranges that were open.
They are moved to just before the report, unless they came after it, and are on threads of their own, so that nothing of
the report's changes. Everything else that was recorded there is no part of the report.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.errors import ReportError
from tracekit.files import reason_of
from tracekit.graphs.api_calls import GRAPH_LAUNCH, is_update, roles_of
from tracekit.graphs.captures import Windows, clone_chains, graph_captures_of
from tracekit.markers.base import StepMarker
from tracekit.markers.phases import COMPILE, phase_of
from tracekit.markers.torch_texts import Numbering
from tracekit.progress import no_progress
from tracekit.readers import kineto, reader_for
from tracekit.recording.axis import ThreadAxis, thread_axis
from tracekit.recording.provenance import MissingData
from tracekit.recording.tables import Allocations, Launches, Ranges, Recording, Threads, Work
from tracekit.trace.decoding import decode
from tracekit.trace.launching import launched

#: What a report lacks whose replays cannot be attributed without their graph captures.
GRAPH_CAPTURES = "graph captures"
T = TypeVar("T", Launches, Ranges)
_SUFFIXES = (".json", ".json.gz")
_EXPECTED = (
    "expected a Chrome trace in which a CUDA graph is captured (SGLang: --enable-profile-cuda-graph, vLLM: "
    "--profiler-config.capture_torch_profiler)"
)


class Captured(NamedTuple):
    """What went on during the graph captures of a trace.

    Attributes:
        recording: The trace's, with these launches, ranges and nodes, and calls that changed graphs later; no work.
        around: Which ranges were open before a graph capture began and after it had ended.
    """

    path: Path
    recording: Recording
    around: Flags

    @property
    def processes(self) -> Rows:
        """Rows of the processes that captured."""
        return np.unique(self.recording.threads.process[self.recording.launches.thread])


def with_graph_captures(path: Path, recording: Recording, captures: Sequence[Path], *, required: bool) -> Recording:
    """The recording of a Chrome trace with the graph captures of its processes, from traces or folders of such.

    Raises:
        ReportError: If the report or a trace is no Chrome trace, a trace has no graph capture, or none of the report's
            own processes has one although that is ``required``.
    """
    if recording.source.format != kineto.NAME:
        problem = "is no Chrome trace, and graph captures are joined only with these"
        remedy = "record the graph capture in the report itself, and leave out --graph-captures"
        raise ReportError(path, problem, remedy)
    # Given twice, or the report itself: what it holds would not be certain any more.
    traces = [one for one in _distinct(map(_read, _files(captures))) if not _is_copy(recording, one.recording)]
    if not traces:
        return recording
    processes = {one.path: _rows(recording, one.recording) for one in traces}
    own = [one for one in traces if (processes[one.path][one.processes] >= 0).any()]
    if not own:
        return _without(path, recording, traces[0], required=required)
    numbering = Numbering(recording.texts)
    around = texts_around_replays(recording)
    for one in sorted(own, key=lambda trace: trace.recording.source.started_utc_ns or 0):
        recording = joined(recording, one.recording, processes[one.path], _texts(one, numbering, around))
    of_captures = [data for one in own for data in one.recording.missing if data.what == "names of modules"]
    missing = [data for data in recording.missing if data.what != GRAPH_CAPTURES]
    return replace(recording, missing=tuple(dict.fromkeys([*missing, *of_captures])))


def _files(captures: Sequence[Path]) -> Iterator[Path]:
    for path in captures:
        if not path.is_dir():
            yield path
            continue
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
        if not files:
            raise ReportError(path, "is a folder without traces (.json, .json.gz)", _EXPECTED)
        yield from files


def _read(path: Path) -> Captured:
    reader = reader_for(path)
    if reader is not kineto:
        raise ReportError(path, "is no Chrome trace", _EXPECTED)
    try:
        recording = reader.read(path, no_progress)
    except OSError as error:
        raise ReportError(path, f"cannot be read ({reason_of(error)})", "check its disk or network") from None
    return _captured_in(path, recording)


def _distinct(traces: Iterable[Captured]) -> list[Captured]:
    """Each trace once; copies may be compressed or written again, but their calls have the same times."""
    known: dict[object, Captured] = {}
    for one in traces:
        recording = one.recording
        pids, ranks = recording.threads.process_pid.tolist(), recording.process_rank.tolist()
        times = recording.launches.start_ns.tobytes()
        known.setdefault((recording.source.started_utc_ns, *pids, *ranks, times), one)
    return [*known.values()]


def _is_copy(report: Recording, other: Recording) -> bool:
    same = report.source.started_utc_ns == other.source.started_utc_ns
    return same and bool(np.isin(other.launches.start_ns, report.launches.start_ns).all())


def _rows(report: Recording, other: Recording) -> Rows:
    """For each process of a trace its row in the report; -1 if it is not there, or has another rank."""
    row = positions(other.threads.process_pid, report.threads.process_pid)
    ours, theirs = np.append(report.process_rank, -1)[row], other.process_rank
    return np.where((ours >= 0) & (theirs >= 0) & (ours != theirs), -1, row)


def _texts(captured: Captured, numbering: Numbering, around: set[str]) -> list[str | None]:
    """The texts that stand for those of a trace; its steps, and what it took to compile, are left out.

    ``around`` are texts of the report's ranges in which graphs were launched.
    """
    recording = captured.recording
    texts: list[str | None] = list(recording.texts)
    decoded = decode(recording.texts)
    steps = decoded.rows(StepMarker)[decoded.of_text].tolist()
    for row, (text, is_step) in enumerate(zip(recording.texts, steps, strict=True)):
        if is_step or ((phase := phase_of(text)) is not None and phase.code == COMPILE):
            texts[row] = None
    of_ranges = recording.ranges.text
    own = [text for row in np.unique(of_ranges).tolist() if (text := texts[row]) is not None]
    around_both = around.intersection(recording.texts[row] for row in np.unique(of_ranges[captured.around]).tolist())
    renamed = numbering.renamed(own, around_both)
    return [renamed.get(text, text) if text is not None else None for text in texts]


def _without(path: Path, recording: Recording, other: Captured, *, required: bool) -> Recording:
    """The recording without graph captures, since those given are of other processes; an error if there must be one."""
    remedy = "give the graph capture of the same process, recorded in the same run"
    if required:
        makers = _in_words(other.recording, other.recording.threads.process_pid[other.processes])
        problem = f"is of {makers}, but {path.name} is of {_in_words(recording, recording.threads.process_pid)}"
        raise ReportError(other.path, problem, remedy)
    missing = [data for data in recording.missing if data.what != GRAPH_CAPTURES]
    reason = MissingData(GRAPH_CAPTURES, f"those given are of other processes; {remedy}")
    return replace(recording, missing=(*missing, reason))


def _in_words(recording: Recording, pids: Ints) -> str:
    ranks = ", ".join(str(rank) for rank in sorted({rank.rank for rank in recording.ranks}))
    return f"process {', '.join(map(str, pids.tolist()))}" + (f" (rank {ranks})" if ranks else "")


_LAST = np.iinfo(np.int64).max


def _captured_in(path: Path, recording: Recording) -> Captured:
    axis = thread_axis(recording)
    works = np.zeros(len(recording.launches) + 1, dtype=bool)
    works[launched(recording).launch] = True
    windows = graph_captures_of(recording, axis, clone_chains(recording), works[:-1]).windows
    captured = np.flatnonzero((windows.at(axis.launch_start, axis.launch_end) >= 0) & ~works[:-1])
    if not captured.size:
        raise ReportError(path, "holds no graph capture", _EXPECTED)
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
    return Captured(path, part, around)


def _ranges(axis: ThreadAxis, windows: Windows) -> tuple[Rows, Flags]:
    begin, end = np.append(windows.begin, _LAST), np.append(windows.end, _LAST)
    later = begin[np.searchsorted(windows.end, axis.range_start, side="right")]
    rows = np.flatnonzero(axis.ends_here & (later < axis.range_end))
    return rows, np.asarray(end[np.searchsorted(windows.begin, axis.range_start[rows])] <= axis.range_end[rows])


def texts_around_replays(recording: Recording) -> set[str]:
    """The texts of ranges in which a graph was launched."""
    axis = thread_axis(recording)
    at = np.sort(axis.launch_start[roles_of(recording) == GRAPH_LAUNCH])
    holds = np.searchsorted(at, axis.range_end) > np.searchsorted(at, axis.range_start)
    texts = np.unique(recording.ranges.text[holds & axis.ends_here])
    return {recording.texts[row] for row in texts[texts >= 0].tolist()}


def joined(report: Recording, other: Recording, process: Rows, texts: Sequence[str | None]) -> Recording:
    """The report's recording with what went on during graph captures.

    ``process`` is the row in the report of every process of the other recording; those with -1 are left out.
    ``texts`` are what stands for the other's texts; ranges of those with None are left out.
    """
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
    launches = _moved(replace(launches, correlation_id=nothing, stack=nothing - 1), thread, shift)
    ranges = _moved(replace(ranges, text=lookup(of_text, ranges.text)), thread, shift)
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


def _moved(table: T, thread: Rows, shift: int) -> T:
    times = {name: getattr(table, name) + shift for name in ("start_ns", "end_ns")}
    return replace(table, thread=thread[table.thread], **times)


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
