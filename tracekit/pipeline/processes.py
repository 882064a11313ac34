"""One report: as a whole, or if it is large its processes apart, which makes the same dataset.

There are three rounds of tasks, which an engine does: the rows of the report are dealt to the processes, the processes
go through the stages as whole reports do, and each table is merged.
"""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from tracekit.arrays.own_process import give_back
from tracekit.dataset.joining import MERGED, Written, merged_modules, write_part
from tracekit.engines import Engine, Task, opened
from tracekit.engines.base import IN_PROCESS, Share
from tracekit.engines.dask import scratch_folder
from tracekit.engines.processes import cores
from tracekit.errors import ReportError
from tracekit.markers.base import HIERARCHIES, CompiledGraphMarker, KernelMapMarker
from tracekit.pipeline.stages import (
    ParseOptions,
    described,
    needed_bytes,
    sqlite_bytes,
    tables_of,
    traced,
    without_collector,
)
from tracekit.progress import Progress, no_progress, of_all
from tracekit.readers.base import Reader
from tracekit.readers.nsight.dealing import Dealt, DealtFile, DealtTables, deal, has_several_processes, readings
from tracekit.readers.nsight.losses import HeldEvents
from tracekit.readers.nsight.report import Stored, StoredReader, recording_of
from tracekit.recording.provenance import Source
from tracekit.storage.local_copies import temp_dir

#: The temporary files, relative to the report as SQLite.
_SCRATCH = 3
#: Memory that dealing a piece takes, and merging a row.
_PIECE_BYTES, _ROW_BYTES = 400_000_000, 40
#: A smaller report, as SQLite, is read as a whole: starting processes would take longer.
LEAST_BYTES = 96 << 20

Result = TypeVar("Result")


def write_tables(
    path: Path, reader: Reader, folder: Path, progress: Progress, options: ParseOptions, scheduler: str | None
) -> None:
    """Reads one report and writes its tables and manifest into an empty folder.

    The dataset depends only on the report, not on where its processes are worked on.
    """
    if options.graph_captures or not isinstance(reader, StoredReader) or sqlite_bytes(path) < LEAST_BYTES:
        tables_of(path, partial(reader.read, path), folder, progress, options)
        return
    with reader.stored(path, progress) as stored:
        if not _write_by_processes(path, stored, folder, progress, options, scheduler):
            tables_of(path, stored.recording, folder, progress, options)


class _StaysWhole(Exception):  # noqa: N818
    """The processes of a report cannot be worked on apart."""


def _write_by_processes(
    path: Path, stored: Stored, folder: Path, progress: Progress, options: ParseOptions, scheduler: str | None
) -> bool:
    """Works on the processes of a report apart; writes nothing and returns False if they depend on each other."""
    scheduler = IN_PROCESS if cores() == 1 else scheduler
    try:
        if not _whole_if_damaged(partial(has_several_processes, stored.tables)):
            return False
        with temp_dir(parent=scratch_folder()) as scratch, opened(scheduler) as engine:
            _check_space(path, scratch)
            _Report(path, stored, engine, scratch, progress).write(folder, options)
    except _StaysWhole:
        for left in folder.iterdir():
            left.unlink()
        return False
    return True


def _whole_if_damaged(function: Callable[[], Result]) -> Result:
    """Runs a step that may find a report damaged; then reads it as a whole to report what is wrong."""
    try:
        return function()
    except ReportError:
        raise _StaysWhole from None


def _check_space(path: Path, scratch: Path) -> None:
    needed, free = _SCRATCH * sqlite_bytes(path), shutil.disk_usage(scratch).free
    if needed > free:
        problem = f"needs {needed / 1e9:.1f} GB for temporary files in {scratch.parent}, which has {free / 1e9:.1f} GB"
        raise ReportError(path, problem, "free some space there, or set TMPDIR to a folder on another disk")


class _Parsed(NamedTuple):
    """What is known of a part of a report whose tables are written.

    Its fields of a manifest; and the ids of kernel maps that its runs of compiled graphs name, and that it has.
    """

    about: dict[str, Any]
    held: HeldEvents
    written: Written
    graphs: frozenset[str]
    maps: frozenset[str]


class _Part(NamedTuple):
    """Some processes of a report, whatever is known of its file, and the folder of their tables."""

    report: Path
    dealt: Dealt
    processes: frozenset[int]
    source: Source
    folder: Path

    @without_collector()
    def parsed(self, options: ParseOptions, share: Share) -> _Parsed:
        """Takes them through the stages."""
        give_back()
        self.folder.mkdir(exist_ok=True)
        tables = DealtTables(self.report, self.dealt, self.processes)
        recording = recording_of(tables, lambda: self.source, lambda _, done: share(0.2 * done))
        trace = traced(recording, options, lambda _, done: share(0.2 + 0.4 * done))
        markers = trace.evidence.decoded.bare
        about, held = described(self.report, trace, options), HeldEvents.of(recording)
        written = write_part(self.folder, trace, lambda _, done: share(0.6 + 0.4 * done))
        graphs = frozenset(marker.map_id for marker in markers if isinstance(marker, CompiledGraphMarker))
        maps = frozenset(marker.map_id for marker in markers if isinstance(marker, KernelMapMarker))
        pa.default_memory_pool().release_unused()
        return _Parsed(about, held, written, graphs, maps)


class _Report(NamedTuple):
    """A report whose processes are worked on apart."""

    path: Path
    stored: Stored
    engine: Engine
    scratch: Path
    progress: Progress

    def write(self, folder: Path, options: ParseOptions) -> None:
        """Writes the dataset."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            source = pool.submit(self.stored.source)  # a digest takes time
            dealt = self._dealt()
            if dealt.stays_whole:
                raise _StaysWhole
            parts = self._parts(dealt)
            parsed = self._parsed(parts, options)
            shutil.rmtree(self.scratch / "dealt")
            about = self._about(dealt, parsed, source.result())
        merge = merged_modules(folder, [part.written for part in parsed], options.first_id)
        needed = [_PIECE_BYTES + _ROW_BYTES * sum(part.written.rows[name] for part in parsed) for name in MERGED]
        self._done("writing", [partial(merge.table, name, folder) for name in MERGED], needed)
        merge.finish(folder, about)

    def _done(self, stage: str, functions: Sequence[Callable[[Share], Result]], needed: Sequence[int]) -> list[Result]:
        """What each function returns, which takes so much memory."""
        results: dict[int, Any] = {}
        progress = of_all(stage, len(functions), self.progress)
        tasks = [Task(str(at), *task) for at, task in enumerate(zip(functions, needed, strict=True))]
        outcomes = self.engine.outcomes(tasks, progress)
        while (outcome := _whole_if_damaged(partial(next, outcomes, None))) is not None:
            if outcome.lost is not None:
                problem = f"a process that worked on it ended early ({outcome.lost})"
                raise ReportError(self.path, problem, "free memory if it ran out of memory, and try again")
            results[outcome.number] = outcome.result
            progress(str(outcome.number), 1.0)
        return [results[number] for number in range(len(tasks))]

    def _dealt(self) -> Dealt:
        tables, folder = self.stored.tables, self.scratch / "dealt"
        folder.mkdir()
        asked = readings(tables)
        made = self._deal(asked, folder / "piece")
        dealt: dict[str, list[DealtFile]] = {}
        for (name, _), file in zip(asked, made, strict=True):
            dealt.setdefault(name, []).append(file)
        odd = [name for name, files in dealt.items() if None in files or not _in_order(files)]
        quiet = self._replace(progress=no_progress)
        for name, file in zip(odd, quiet._deal([(name, None) for name in odd], folder / "whole"), strict=True):
            dealt[name] = [file]
        return Dealt(tables, dealt)

    def _deal(self, asked: list[tuple[str, Any]], file: Path) -> list[Any]:
        places = [file.with_name(f"{file.name}-{number}.arrow") for number in range(len(asked))]
        deals = [partial(deal, self.stored.tables, *one) for one in zip(asked, places, strict=True)]
        return self._done("reading", deals, [_PIECE_BYTES] * len(deals))

    def _parts(self, dealt: Dealt) -> list[_Part]:
        # The rank in the file's name belongs to the only process that used a GPU.
        source = Source(self.path.name if len(dealt.working) == 1 else "", 0, "", "")
        return [
            _Part(self.path, dealt, part, source, self.scratch / f"part-{number}")
            for number, part in enumerate(dealt.parts)
        ]

    def _parsed(self, parts: list[_Part], options: ParseOptions) -> list[_Parsed]:
        parsed = self._through_stages(parts, options)
        keyed_by = [part.about["hierarchy"]["by"] for part in parsed]
        with_nodes = [by for by, part in zip(keyed_by, parsed, strict=True) if part.written.rows["modules"]]
        by = min(with_nodes, key=HIERARCHIES.index, default=keyed_by[0])
        others = [at for at, other in enumerate(keyed_by) if other != by]
        quiet = self._replace(progress=no_progress)
        again = quiet._through_stages([parts[at] for at in others], replace(options, rows=by))
        for at, part in zip(others, again, strict=True):
            parsed[at] = part
        for part in parsed:
            part.about["hierarchy"] = {"by": by, "asked": options.rows}
            elsewhere = frozenset().union(*(other.maps for other in parsed))
            if not (part.graphs - part.maps).isdisjoint(elsewhere):
                raise _StaysWhole  # any process may record a map for all
        return parsed

    def _through_stages(self, parts: list[_Part], options: ParseOptions) -> list[_Parsed]:
        if not parts:
            return []
        rows = parts[0].dealt.rows
        whole = max(1, sum(rows.values()))
        shares = [sum(map(rows.__getitem__, part.processes)) / whole for part in parts]
        needed = [needed_bytes(self.path, share) for share in shares]
        return self._done("attributing", [partial(part.parsed, options) for part in parts], needed)

    def _about(self, dealt: Dealt, parsed: list[_Parsed], source: Source) -> dict[str, Any]:
        abouts = [part.about for part in parsed]
        of_file = {name: asdict(source)[name] for name in ("name", "size_bytes", "sha256", "format")}
        exporter = {"exporter": self.stored.exporter} if self.stored.exporter else {}
        processes = {process["pid"]: process for about in abouts for process in about["processes"]}
        missing = (*dealt.missing(HeldEvents.together(part.held for part in parsed)), *self.stored.missing)
        like = {"like": _together([about["like"] for about in abouts])} if "like" in abouts[0] else {}
        return {
            **abouts[0],
            **like,
            "source": abouts[0]["source"] | of_file | exporter,
            "processes": [processes[pid] for pid in sorted(processes)],
            "ranks": [rank for about in abouts for rank in about["ranks"]],
            "missing": [asdict(data) for data in missing],
            "length_ns": max(about["length_ns"] for about in abouts),
            "launches": sum(about["launches"] for about in abouts),
        }


def _together(parts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The marked runs that the processes are like, with all steps that they use."""
    together = []
    for same in zip(*parts, strict=True):
        steps = sorted({step for one in same for step in one["steps"]})
        together.append({**same[0], "steps": steps, "kernels": sum(one["kernels"] for one in same)})
    return together


def _in_order(files: Sequence[DealtFile]) -> bool:
    places = [place for file in files for place in (file.place if file.rows else ())]
    return places == sorted(places)
