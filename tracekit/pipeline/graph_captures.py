"""Graph captures in traces of their own, as vLLM and SGLang record them when they start; here they join the report.

A trace belongs to the report if the same process captured that replays, and no rank contradicts it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import positions
from tracekit.arrays.types import Ints, Rows
from tracekit.errors import ReportError
from tracekit.files import reason_of
from tracekit.graphs.recorded_apart import Captured, captured_in, joined, texts_around_replays
from tracekit.markers.base import StepMarker
from tracekit.markers.phases import COMPILE, phase_of
from tracekit.markers.torch_texts import Numbering
from tracekit.progress import no_progress
from tracekit.readers import kineto, reader_for
from tracekit.recording.provenance import MissingData
from tracekit.recording.tables import Recording
from tracekit.trace.decoding import decode
from tracekit.trace.launching import launched

#: What a report lacks whose replays cannot be attributed without their graph captures.
GRAPH_CAPTURES = "graph captures"
_SUFFIXES = (".json", ".json.gz")
_EXPECTED = (
    "expected a Chrome trace in which a CUDA graph is captured (SGLang: --enable-profile-cuda-graph, vLLM: "
    "--profiler-config.capture_torch_profiler)"
)


class CaptureTrace(NamedTuple):
    """A trace of graph captures."""

    path: Path
    captured: Captured


def with_graph_captures(path: Path, recording: Recording, captures: Sequence[Path], *, required: bool) -> Recording:
    """The recording of a Chrome trace with the graph captures of its processes, from traces or folders of such.

    Raises:
        ReportError: If the report or a trace is no Chrome trace, a trace has no graph capture, or one of the report's
            own processes is ``required`` and absent.
    """
    if recording.source.format != kineto.NAME:
        problem = "is no Chrome trace, and graph captures are joined only with these"
        remedy = "record the graph capture in the report itself, and leave out --graph-captures"
        raise ReportError(path, problem, remedy)
    # Given twice, or the report itself: what it holds would not be certain any more.
    traces = [one for one in _distinct(map(_read, _files(captures))) if not _is_copy(recording, one.captured.recording)]
    own = [one for one in traces if (_rows(recording, one.captured)[one.captured.processes] >= 0).any()]
    if not traces:
        return recording
    if not own:
        return _without(path, recording, traces, required=required)
    numbering = Numbering(recording.texts)
    around = {recording.texts[row] for row in texts_around_replays(recording).tolist()}
    for one in sorted(own, key=lambda trace: trace.captured.recording.source.started_utc_ns or 0):
        texts = _texts(one.captured, numbering, around)
        recording = joined(recording, one.captured, _rows(recording, one.captured), texts)
    of_captures = [data for one in own for data in one.captured.recording.missing if data.what == "names of modules"]
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


def _read(path: Path) -> CaptureTrace:
    reader = reader_for(path)
    if reader is not kineto:
        raise ReportError(path, "is no Chrome trace", _EXPECTED)
    try:
        recording = reader.read(path, no_progress)
    except OSError as error:
        raise ReportError(path, f"cannot be read ({reason_of(error)})", "check its disk or network") from None
    captured = captured_in(recording, launched(recording).launch)
    if captured is None:
        raise ReportError(path, "holds no graph capture", _EXPECTED)
    return CaptureTrace(path, captured)


def _distinct(traces: Iterable[CaptureTrace]) -> list[CaptureTrace]:
    """Each trace once; copies may be compressed or written again, but their calls have the same times."""
    known: dict[object, CaptureTrace] = {}
    for one in traces:
        recording = one.captured.recording
        pids, ranks = recording.threads.process_pid.tolist(), recording.process_rank.tolist()
        times = recording.launches.start_ns.tobytes()
        known.setdefault((recording.source.started_utc_ns, *pids, *ranks, times), one)
    return [*known.values()]


def _is_copy(report: Recording, other: Recording) -> bool:
    same = report.source.started_utc_ns == other.source.started_utc_ns
    return same and bool(np.isin(other.launches.start_ns, report.launches.start_ns).all())


def _rows(report: Recording, captured: Captured) -> Rows:
    other = captured.recording
    row = positions(other.threads.process_pid, report.threads.process_pid)
    ours, theirs = np.append(report.process_rank, -1)[row], other.process_rank
    return np.where((ours >= 0) & (theirs >= 0) & (ours != theirs), -1, row)


def _texts(captured: Captured, numbering: Numbering, around: set[str]) -> list[str | None]:
    """The texts that stand for those of a trace; its steps, and what it took to compile, are left out.

    ``around`` are texts of the report's ranges in which graphs were launched.
    """
    texts: list[str | None] = list(captured.recording.texts)
    decoded = decode(captured.recording.texts)
    steps = decoded.rows(StepMarker)[decoded.of_text].tolist()
    for row, (text, is_step) in enumerate(zip(captured.recording.texts, steps, strict=True)):
        if is_step or ((phase := phase_of(text)) is not None and phase.code == COMPILE):
            texts[row] = None
    own = [text for row in captured.texts().tolist() if (text := texts[row]) is not None]
    around_both = around.intersection(captured.recording.texts[row] for row in captured.texts(around=True).tolist())
    renamed = numbering.renamed(own, around_both)
    return [renamed.get(text, text) if text is not None else None for text in texts]


def _without(path: Path, recording: Recording, traces: list[CaptureTrace], *, required: bool) -> Recording:
    """The recording without graph captures, since those given are of other processes; an error if there must be one."""
    remedy = "give the graph capture of the same process, recorded in the same run"
    if required:
        other = traces[0].captured
        makers = _in_words(other.recording, other.recording.threads.process_pid[other.processes])
        problem = f"is of {makers}, but {path.name} is of {_in_words(recording, recording.threads.process_pid)}"
        raise ReportError(traces[0].path, problem, remedy)
    missing = [data for data in recording.missing if data.what != GRAPH_CAPTURES]
    reason = MissingData(GRAPH_CAPTURES, f"those given are of other processes; {remedy}")
    return replace(recording, missing=(*missing, reason))


def _in_words(recording: Recording, pids: Ints) -> str:
    ranks = ", ".join(str(rank) for rank in sorted({rank.rank for rank in recording.ranks}))
    return f"process {', '.join(map(str, pids.tolist()))}" + (f" (rank {ranks})" if ranks else "")
