"""Chrome traces of torch.profiler, 2020 to today, into a recording.

Fields are looked up by the names that Kineto has given them; categories of other profilers and events that hold no work
are left out. What a trace lacks is reported, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.causes.reports import ABSURD_TIME, OTHER_EVENT, PROCESS_UNKNOWN
from tracekit.errors import ReportError
from tracekit.markers import DIALECTS
from tracekit.markers.base import ModuleMarker
from tracekit.readers.kineto import NAME
from tracekit.readers.kineto.device import processes_of, work_table
from tracekit.readers.kineto.forward_threads import forward_threads
from tracekit.readers.kineto.gathering import (
    ALLOCATION,
    ANNOTATION,
    BESIDE,
    CALL,
    DEVICE_WORK,
    FLOW,
    FORWARD,
    KINDS,
    MODULE,
    OPERATOR,
    SUBJECTS,
    Gathering,
)
from tracekit.readers.kineto.host import allocations_table, launches_table, ranges_table, threads_of
from tracekit.readers.kineto.lacks import lacks_of
from tracekit.readers.kineto.machine import gpus_of, process_names_of, ranks_of, source_of, thread_names_of
from tracekit.readers.kineto.namesakes import distinct_names
from tracekit.readers.kineto.recomputed import names_with_phase
from tracekit.readers.kineto.scripted import scripted_calls
from tracekit.readers.kineto.stream import EXPECTED, Trace
from tracekit.recording.operators import no_operators, operators_as_work
from tracekit.recording.tables import Recording
from tracekit.recording.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.progress import Progress
    from tracekit.readers.kineto.gathering import Columns
    from tracekit.recording.operators import Operators
    from tracekit.recording.tables import Threads

#: Calls of modules that are inferred from operators.
SCRIPTED = "scripted"

#: Longer than any session: 104 days.
_FARTHEST_NS = 1 << 53


def read(path: Path, progress: Progress, *, operators_as_work: bool = False) -> Recording:
    """Reads the trace, piece by piece.

    Args:
        path: The trace.
        progress: Called with the share that is read.
        operators_as_work: Whether operators are work also where a device did some; it comes first.

    Raises:
        ReportError: If it is not a trace of torch.profiler, or is damaged.
    """
    tally, trace = Tally(), Trace(path)
    gathering = Gathering(tally)
    size = max(path.stat().st_size, 1)
    for piece in trace.pieces():
        gathering.add(piece)
        progress("reading", piece.position / size)
    events = {kind: gathering.table(kind) for kind in KINDS}
    if not any(events[kind]["start"].size for kind in KINDS if kind not in BESIDE):
        raise ReportError(path, "holds no events of torch.profiler", EXPECTED)
    first_ns = _from_the_first(events, tally)
    threads = _threads(events, list(gathering.threads))
    events[OPERATOR]["made_on"] = forward_threads(events[OPERATOR], events[FLOW], threads.process)
    numbered = _modules_are_numbered(events, gathering, tally)
    known = numbered or events[SCRIPTED]["start"].size or not trace.metadata.with_modules
    recording = Recording(
        source=source_of(path, NAME, trace.metadata, first_ns),
        threads=threads,
        **_tables(events, gathering, threads, tally, operators_as_work=operators_as_work)._asdict(),
        domains=[],
        texts=list(gathering.texts),
        names=list(gathering.names),
        process_names=process_names_of(gathering.process_names, threads),
        thread_names=thread_names_of(gathering.thread_names, threads),
        devices=gpus_of(trace.metadata),
        ranks=ranks_of(trace.metadata, threads),
        allocations=allocations_table(events[ALLOCATION]),
        tally=tally,
        records_graphs=False,
    )
    without = not known and not _has_markers(gathering.texts)
    return replace(recording, lacks=tuple(lacks_of(recording, numbered=numbered, without_modules=without)))


class _Tables(NamedTuple):
    """The tables of a recording; names are those of :class:`Recording`."""

    ranges: pa.Table
    launches: pa.Table
    work: pa.Table
    inside_ns: Ints | None


def _tables(
    events: dict[str, Columns], gathering: Gathering, threads: Threads, tally: Tally, *, operators_as_work: bool
) -> _Tables:
    launches = launches_table(events[CALL], tally)
    parts = []
    for kind in DEVICE_WORK:
        rows = events[kind]
        process = processes_of(rows["correlation"], launches, threads.process, threads.process_pid.size)
        tally.add("kernels", PROCESS_UNKNOWN, int((process < 0).sum()) if threads.process_pid.size else 0)
        parts.append(work_table(kind, rows, process, gathering.names, tally))
    work = pa.concat_tables(parts).combine_chunks()
    operators = _operators(events[OPERATOR], threads) if operators_as_work or not work.num_rows else no_operators()
    work, inside_ns = operators.done_beside(work)
    marked = [events[kind] for kind in (ANNOTATION, OPERATOR, MODULE, SCRIPTED)]
    return _Tables(ranges_table(marked, tally), operators.launched_beside(launches), work, inside_ns)


def _threads(events: dict[str, Columns], ids: list[tuple[int, int]]) -> Threads:
    """The threads that have ranges or launches. Makes events name them by their rows; drops those of other threads."""
    used = np.zeros(len(ids), dtype=bool)
    on_threads = [(kind, columns) for kind, columns in events.items() if "thread" in columns]
    for kind, columns in on_threads:
        used[columns["thread"]] |= kind not in BESIDE
    threads, places = threads_of([one for one, is_used in zip(ids, used.tolist(), strict=True) if is_used])
    row = np.full(used.size, -1, dtype=np.int64)
    row[used] = places
    for _, columns in on_threads:
        kept = used[columns["thread"]]
        columns |= {name: column[kept] for name, column in columns.items()}
        columns["thread"] = row[columns["thread"]]
    return threads


def _operators(rows: Columns, threads: Threads) -> Operators:
    """Operators as work, where no device did any."""
    if not rows["start"].size:
        return no_operators()
    thread = rows["thread"]
    return operators_as_work(rows["start"], rows["end"], thread, threads.process[thread], rows["name"])


def _modules_are_numbered(events: dict[str, Columns], gathering: Gathering, tally: Tally) -> bool:
    """Whether some are known from ``with_stack`` alone. Where hooks marked modules, only their markers count."""
    calls = events[MODULE]
    hierarchies = list(gathering.hierarchies)
    if _has_markers(gathering.texts):
        tally.add("events", OTHER_EVENT, calls["start"].size)
        calls |= {name: column[:0] for name, column in calls.items()}
        hierarchies = [""] * len(hierarchies)
    events[SCRIPTED] = scripted_calls(events[OPERATOR], list(gathering.names), hierarchies, gathering.texts)
    calls["name"] = distinct_names(calls, events[FORWARD], gathering.names)
    calls["text"] = gathering.texts_of_names(names_with_phase(calls, events[OPERATOR], gathering.names))
    return bool(calls["start"].size)


def _has_markers(texts: Iterable[str]) -> bool:
    """Whether some texts are markers of modules."""
    dialects = [(re.compile(dialect.CANDIDATES), dialect.parse) for dialect in DIALECTS]
    return any(
        candidates.search(text) and isinstance(parse(text), ModuleMarker)
        for text in texts
        for candidates, parse in dialects
    )


def _from_the_first(events: dict[str, Columns], tally: Tally) -> int:
    """Makes all times count from the first one, which is returned; drops those too far away from all others."""
    starts = np.concatenate([columns["start"] for columns in events.values()])
    middle = int(np.partition(starts, starts.size // 2)[starts.size // 2])
    for kind, columns in events.items():
        far = (np.abs(columns["start"] - middle) > _FARTHEST_NS) | (np.abs(columns["end"] - middle) > _FARTHEST_NS)
        if far.any():
            tally.add(SUBJECTS.get(kind, "ranges"), ABSURD_TIME, int(far.sum()))
            columns |= {name: column[~far] for name, column in columns.items()}
    counted = (columns["start"] for kind, columns in events.items() if kind not in BESIDE)
    first_ns = min(int(start.min()) for start in counted if start.size)
    for columns in events.values():
        columns["start"] = columns["start"] - first_ns
        columns["end"] = columns["end"] - first_ns
    return first_ns
