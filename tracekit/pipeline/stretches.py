"""One large report, worked on in stretches one after the other, so that memory does not grow with it.

The tables are those of the report as a whole, row by row. A report of which that is not certain is not cut.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.attribution import attribute
from tracekit.dataset.stretches.merging import merge
from tracekit.dataset.stretches.parts import GROUP, Part
from tracekit.dataset.writing import write
from tracekit.markers.kinds import AUTO, MODULES
from tracekit.pipeline.about import about, folder_of
from tracekit.pipeline.independence import Texts, check, check_together, marking_threads
from tracekit.progress import silent
from tracekit.readers.digests import source_of_file
from tracekit.readers.nsight.report import recording_of
from tracekit.readers.nsight_sqlite import NAME
from tracekit.readers.rows.ranks import FILE_NAME, RANGE
from tracekit.readers.stretches.report import stretches_of
from tracekit.readers.stretches.source import repeated
from tracekit.readers.stretches.survey import NotCuttable
from tracekit.tables.coverage import advice_on
from tracekit.trace.decoding import decode
from tracekit.trace.evidence import evidence_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.arrays.types import Flags
    from tracekit.attribution.base import Trace
    from tracekit.pipeline.one import Wishes
    from tracekit.progress import Progress
    from tracekit.readers.stretches.source import StretchSource
    from tracekit.recording.provenance import Source
    from tracekit.recording.tables import Recording

#: About so many ranges and API calls are in a stretch.
MOST_ROWS = 1_500_000
_HIDDEN = ".stretches"


def tables_in_stretches(path: Path, folder: Path, progress: Progress, wishes: Wishes, most: int = MOST_ROWS) -> None:
    """Reads one report in stretches and writes its tables and manifest into an empty folder.

    Args:
        path: A SQLite export of Nsight Systems.
        folder: The folder; left empty if the report must be worked on as a whole.
        progress: Called with each stage and the share of it that is done.
        wishes: What is asked of the dataset.
        most: About so many ranges and API calls shall be in a stretch.

    Raises:
        NotCuttable: If the report must be worked on as a whole.
        ReportError: If it cannot be read.
    """
    if wishes.by not in (AUTO, MODULES) or wishes.graph_captures:
        raise NotCuttable("a hierarchy of other things than modules")
    hidden = folder / _HIDDEN
    try:
        _in_stretches(path, folder, progress, wishes, most)
    except NotCuttable:
        for file in folder.glob("*.parquet"):
            file.unlink()
        raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _in_stretches(path: Path, folder: Path, progress: Progress, wishes: Wishes, most: int) -> None:
    hidden, texts, source = folder / _HIDDEN, Texts(), source_of_file(path, NAME)
    parts: list[Part] = []
    looks: set[str] = set()
    steps = []
    with stretches_of(path, hidden / "rows", texts, most, lambda share: progress("cutting", share)) as stretches:
        if not texts.modules:
            raise NotCuttable("no modules")
        for number, stretch in enumerate(stretches):
            recording = recording_of(stretch, lambda: source, silent)
            trace = attribute(evidence_of(recording, decode(recording.texts), MODULES))
            again = _repeated(stretch, recording)
            check(trace.evidence, again, first=number == 0)
            parts.append(_left(trace, stretch, again, hidden / f"part{number}"))
            looks |= recording.tally.looks
            steps.append(marking_threads(trace.evidence))
            stretch.remove()
            del recording, trace
            pa.default_memory_pool().release_unused()
            progress("stretches", (number + 1) / len(stretches))
    check_together(looks, steps)
    described = {
        "hierarchy": {"by": MODULES, "asked": wishes.by},
        "folder": folder_of(path),
        **_about(parts, source),
    }
    merge(folder, parts, described, progress, wishes.first_id)


def _repeated(stretch: StretchSource, recording: Recording) -> Flags:
    process = recording.threads.process[integers(recording.ranges, "thread")]
    return repeated(stretch, process, integers(recording.ranges, "start_ns"))


def _left(trace: Trace, stretch: StretchSource, again: Flags, folder: Path) -> Part:
    """Writes the tables of a stretch."""
    folder.mkdir(parents=True)
    recording, ids = trace.evidence.recording, trace.ids
    advice = advice_on(trace)
    described = about(recording)
    write(folder, trace, described, silent, row_group=GROUP)
    order = np.argsort(ids.kernel_id)
    integers(recording.work, "start_ns")[order].astype(np.int64).tofile(folder / "kernel_start")
    stretch.work_row[order].tofile(folder / "kernel_row")
    thread = integers(recording.ranges, "thread")
    process, end = recording.threads.process[thread], integers(recording.ranges, "end_ns")
    reaching = np.flatnonzero(~again & (end >= np.append(stretch.end_ns, 0)[process]))
    return Part(
        folder=folder,
        threads=stretch.ids.tids,
        pids=dict(zip(stretch.ids.pids.tolist(), recording.threads.process_pid.tolist(), strict=True)),
        first_range=np.searchsorted(thread, np.arange(stretch.ids.tids.size + 1)),
        repeated=np.flatnonzero(again),
        reaching=reaching,
        reach_ns=end[reaching],
        begin_ns=dict(zip(stretch.ids.pids.tolist(), stretch.begin_ns.tolist(), strict=True)),
        step_counted=np.array([one.index is None for one in trace.evidence.steps.says], dtype=bool),
        advice=advice,
        about=described,
    )


def _about(parts: Sequence[Part], source: Source) -> dict[str, Any]:
    """Fields of the manifest that describe the report."""
    abouts = [part.about for part in parts]
    names = {process["pid"]: process for one in abouts for process in one["processes"]}
    ranks = {rank["pid"]: rank for one in abouts for rank in one["ranks"]}
    if any(rank != ranks[rank["pid"]] for one in abouts for rank in one["ranks"]):
        raise NotCuttable("ranks that differ from time to time")
    if any(rank["source"] == RANGE for rank in ranks.values()):
        raise NotCuttable("ranges that name ranks")
    if any(rank["source"] == FILE_NAME for rank in ranks.values()) and len(_using_gpus(parts)) > 1:
        raise NotCuttable("several processes, of which the file's name tells the rank of one")
    events = [lack for lack in _missing(abouts) if all(lack in one["lacks"] for one in abouts)]
    return {
        **abouts[0],
        "source": abouts[0]["source"] | {"name": source.name},
        "processes": [names[pid] for pid in sorted(names)],
        "ranks": [ranks[pid] for pid in sorted(ranks)],
        "lacks": [*events, *(lack for lack in abouts[0]["lacks"] if lack["what"] not in _EVENTS)],
        "launches": sum(one["launches"] for one in abouts),
    }


#: What a stretch may lack that the report has.
_EVENTS = ("NVTX ranges", "GPU work", "CUDA API calls")


def _missing(abouts: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [lack for lack in abouts[0]["lacks"] if lack["what"] in _EVENTS]


def _using_gpus(parts: Sequence[Part]) -> set[int]:
    return {int(pid) for part in parts for pid in np.unique(part.column("kernels", "pid")).tolist()}
