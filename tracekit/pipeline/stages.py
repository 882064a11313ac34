"""One report through the stages: read, decode, evidence, attribute, write."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from tracekit.attribution import attribute
from tracekit.attribution.base import Trace
from tracekit.dataset.writing import write
from tracekit.errors import ReportError
from tracekit.files import reason_of
from tracekit.markers.base import AUTO
from tracekit.progress import Progress, no_progress
from tracekit.recording.tables import Recording
from tracekit.storage.locations import Location, is_remote, reachable
from tracekit.trace.decoding import decode, with_last_paths
from tracekit.trace.evidence import evidence_of
from tracekit.unmarked import Reference, aligned
from tracekit.version import __version__

#: Parsing 185 MB took 0.54 GB at its peak; 963 MB took 3.2 GB, before calls were found and written in less.
_BASE_BYTES, _BYTES_PER_BYTE = 200_000_000, 4
#: How much larger a report would be as SQLite, if it is stored more densely. Of a Chrome trace, 49 MB as .gz, 525 MB
#: unpacked, took 1.0 GB; others are packed twice as densely.
_DENSITY = {".nsys-rep": 10, ".qdrep": 14, ".qdstrm": 10, ".parquet": 4, ".gz": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseOptions:
    """What is asked of the dataset of a report, as of :func:`tracekit.pipeline.parse`.

    Ids are counted from ``first_id``. ``required`` is whether a graph capture must come from the report's own
    processes.
    """

    first_id: int = 0
    rows: str = AUTO
    graph_captures: tuple[Path, ...] = ()
    required: bool = True
    like: tuple[Reference, ...] = ()
    collectives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How reports are parsed, as asked of :func:`tracekit.pipeline.parse`."""

    force: bool = False
    scheduler: str | None = None
    progress: Progress = no_progress


@contextmanager
def without_collector() -> Iterator[None]:
    """No text, marker or module holds itself, and Python's collector would walk over all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_collector()
def tables_of(
    path: Path, read: Callable[[Progress], Recording], folder: Path, progress: Progress, options: ParseOptions
) -> None:
    """Reads one report and writes its tables and manifest into an empty folder."""
    try:
        recording = read(progress)
    except OSError as error:
        raise ReportError(path, f"cannot be read ({reason_of(error)})", "check its disk or network") from None
    if options.graph_captures:
        from tracekit.pipeline.graph_captures import with_graph_captures  # noqa: PLC0415 - few reports have such traces

        recording = with_graph_captures(path, recording, options.graph_captures, required=options.required)
    trace = traced(recording, options, progress)
    write(folder, trace, described(path, trace, options), progress, options.first_id)


def traced(recording: Recording, options: ParseOptions, progress: Progress) -> Trace:
    """Finds the evidence, and gives every kernel its module."""
    pa.default_memory_pool().release_unused()
    progress("attributing", 0.0)
    recording = with_last_paths(recording)
    decoded = decode(recording.texts)
    # The rest of the time is that of ``attribute``, on reports of a million kernels.
    evidence = evidence_of(recording, decoded, options.rows, lambda share: progress("attributing", 0.9 * share))
    trace = attribute(replace(evidence, collectives=options.collectives))
    if options.like:
        trace = aligned(trace, options.like)
    progress("attributing", 1.0)
    pa.default_memory_pool().release_unused()
    return trace


def described(path: Path, trace: Trace, options: ParseOptions) -> dict[str, object]:
    """The fields of the manifest that describe the report."""
    recording = trace.evidence.recording
    pids = recording.threads.process_pid.tolist()
    return {
        "hierarchy": {"by": trace.evidence.keyed.by, "asked": options.rows},
        # Reports of equal names are distinguished by it.
        "folder": os.fsencode(path.absolute().parent.name).decode("utf-8", "replace"),
        **({"like": [asdict(one) for one in trace.references]} if options.like else {}),
        **({"collectives": options.collectives} if options.collectives else {}),
        "tracekit": __version__,
        "source": asdict(recording.source),
        "processes": [{"pid": pid, "name": recording.process_names.get(pid)} for pid in sorted(set(pids))],
        "processes_share_ids": len(set(pids)) < len(pids),
        "devices": [{"device": number, **asdict(gpu)} for number, gpu in sorted(recording.devices.items())],
        "ranks": [{"pid": rank.pid, "rank": rank.rank, "source": rank.source} for rank in recording.ranks],
        "missing": [asdict(data) for data in recording.missing],
        "length_ns": max(int(ends.max(initial=0)) for ends in (recording.launches.end_ns, recording.work.end_ns)),
        "launches": len(recording.launches),
        "graph_captures": [asdict(source) for source in recording.graph_captures],
    }


def needed_bytes(report: Location, share: float = 1) -> int:
    """Estimate of the memory that parsing a share of a report takes; 0 where reading it will show what is wrong."""
    size = sqlite_bytes(report)
    return _BASE_BYTES + int(_BYTES_PER_BYTE * size * share) if size else 0


def sqlite_bytes(report: Location) -> int:
    """Estimate of the size of a report as SQLite; 0 where reading it will show what is wrong."""
    try:
        with reachable(report, ReportError) if is_remote(report) else nullcontext():
            files = [report, *report.iterdir()] if report.is_dir() else [report]
            return sum(file.stat().st_size * _DENSITY.get(file.suffix, 1) for file in files)
    except (OSError, ReportError):
        return 0
