"""Several reports, such as one per rank, parsed side by side into one dataset."""

import os
import re
import shutil
import socket
import traceback
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path

from tracekit.dataset.joining import Part, join
from tracekit.dataset.opening import Dataset, load
from tracekit.dataset.writing import as_named, writing
from tracekit.engines import Engine, Outcome, Task, opened
from tracekit.engines.base import IN_PROCESS, Share
from tracekit.engines.dask import scratch_folder
from tracekit.errors import ReportError, ReportsError, UsageError
from tracekit.files import reason_of
from tracekit.pipeline.report import write_tables
from tracekit.pipeline.stages import ParseOptions, Run, needed_bytes
from tracekit.progress import Progress, of_all
from tracekit.readers import reader_for
from tracekit.storage.local_copies import local_copy, temp_dir
from tracekit.storage.locations import Location, in_order, is_remote

#: Distance between the first ids of reports. No report has so many rows, and with up to 8,000 reports every id is exact
#: as a floating-point number. ``id >> 40`` is the report's number.
IDS_PER_REPORT = 1 << 40

#: A terminal shows so many reports one below the other.
_MOST_NAMED = 16
#: The part of a report's progress that each stage covers.
_STAGES = {
    "bringing": (0.0, 0.2),
    "exporting": (0.0, 0.3),
    "reading": (0.0, 0.3),
    "decoding": (0.3, 0.4),
    "attributing": (0.4, 0.6),
    "writing": (0.6, 1.0),
}
_ALONE = "parse it alone, and free memory if it ran out of memory"
_LONGEST_NAME = 200
#: Names that readers of partitions would parse as a number, a date or null.
_NOT_TEXT = re.compile(r"([\d+-][\da-fxtz._+-]*|null)?", re.IGNORECASE)


def parse_several(paths: Sequence[Location], out: Path | None, options: ParseOptions, run: Run) -> Dataset:
    """Reads reports side by side and writes one dataset of all that can be read."""
    _check_given(paths)
    if out is None:
        raise UsageError("several reports become one dataset; name its folder with -o")
    with writing(out, force=run.force) as (partial, place):
        named = enumerate(report_names(paths))
        parts = [Part(name, partial / f".{name}", number * IDS_PER_REPORT) for number, name in named]
        errors = parse_parts(paths, parts, options, run)
        if len(errors) == len(parts):
            raise ReportsError(errors.values(), None)
        readable = [part for part in parts if part.name not in errors]
        left_out = [{"name": name, "problem": error.problem} for name, error in errors.items()]
        join(partial, readable, left_out, run.progress)
    folder = as_named(out, place)
    if errors:
        raise ReportsError(errors.values(), folder)
    return load(folder)


def _check_given(paths: Sequence[Location]) -> None:
    """Every report must be given once."""
    if not paths:
        raise UsageError("there is no report to parse")
    seen: dict[object, Location] = {}
    for path in paths:
        identity = _identity(path)
        if (before := seen.get(identity)) is not None:
            same = "" if before == path else f", the same file as {before}"
            raise UsageError(f"{path} is given twice{same}; name every report once")
        seen[identity] = path


def _identity(path: Location) -> object:
    if not isinstance(path, Path):
        return str(path)
    try:
        status = path.stat()
    except OSError:
        return path.absolute()
    return (status.st_dev, status.st_ino)


def parse_parts(
    paths: Sequence[Location], parts: Sequence[Part], options: ParseOptions, run: Run
) -> dict[str, ReportError]:
    """Parses reports side by side, each into its folder; why some cannot be read, by their names."""
    progress = run.progress
    if len(parts) > _MOST_NAMED:
        progress = of_all(f"{len(parts)} reports", len(parts), run.progress)
    work = [(part, path, replace(options, first_id=part.first_id)) for path, part in zip(paths, parts, strict=True)]
    errors: dict[int, ReportError] = {}
    with opened(run.scheduler) as engine:
        outcomes = _here(engine, work, progress) if engine.shares_files else _away(engine, work, progress)
        for outcome in outcomes:
            error = outcome.result
            if outcome.lost is not None:
                problem = f"the process that parsed it ended early ({outcome.lost})"
                error = ReportError(paths[outcome.number], problem, _ALONE)
            if error is not None:
                errors[outcome.number] = error
                shutil.rmtree(parts[outcome.number].folder, ignore_errors=True)
    return {parts[number].name: errors[number] for number in sorted(errors)}


#: What is done with a report: its dataset, its file, what is asked of it.
_Work = tuple[Part, Location, ParseOptions]


def report_names(paths: Sequence[Location]) -> list[str]:
    """A name for every report: usable as a folder's name, and different from all others even if case is ignored.

    It is the file's stem. Equal stems are preceded by the name of the file's folder; if they are still equal, a number
    follows.
    """
    stems = [_safe(path.stem) for path in paths]
    counts = Counter(stem.casefold() for stem in stems)
    names: dict[str, str] = {}
    for path, stem in zip(paths, stems, strict=True):
        parent = path.absolute().parent.name
        wanted = _safe(f"{parent}-{path.stem}") if counts[stem.casefold()] > 1 and parent else stem
        numbered = chain([wanted], (f"{wanted}-{number}" for number in count(2)))
        name = next(name for name in numbered if name.casefold() not in names)
        names[name.casefold()] = name
    return list(names.values())


def _safe(text: str) -> str:
    """Letters, digits, dots, dashes and underscores; short, and never parsed as a number, a date or null."""
    kept = [letter if letter.isalnum() or letter in ".-_" else "_" for letter in unicodedata.normalize("NFC", text)]
    name = "".join(kept).encode()[:_LONGEST_NAME].decode("utf-8", "ignore").lstrip("._")
    return f"report_{name}" if _NOT_TEXT.fullmatch(name) else name


def _here(engine: Engine, work: Sequence[_Work], progress: Progress) -> Iterator[Outcome[ReportError | None]]:
    needed = in_order(needed_bytes, [report for _, report, _ in work], work[0][1])
    tasks = [
        Task(part.name, partial(parsed_into, part.folder, report, options), bytes_)
        for (part, report, options), bytes_ in zip(work, needed, strict=True)
    ]
    return engine.outcomes(tasks, progress)


def _away(engine: Engine, work: Sequence[_Work], progress: Progress) -> Iterator[Outcome[ReportError | None]]:
    tasks = []
    for part, report, options in work:
        captures = tuple(path.absolute() for path in options.graph_captures)
        function = partial(parsed_away, report.absolute(), replace(options, graph_captures=captures))
        tasks.append(Task(part.name, function))
    for outcome in engine.outcomes(tasks, progress):
        folder, result = work[outcome.number][0].folder, outcome.result
        if isinstance(result, dict):
            folder.mkdir(exist_ok=True)
            for name, content in result.items():
                (folder / name).write_bytes(content)
        yield Outcome(outcome.number, None if isinstance(result, dict) else result, outcome.lost)


def parsed_into(folder: Path, report: Location, options: ParseOptions, share: Share) -> ReportError | None:
    """Parses a report into a folder, which is made or empty; returns why it could not be read, or None.

    What goes wrong with one report must not spoil the others.
    """

    def progress(stage: str, done: float) -> None:
        if stage in _STAGES:
            begin, end = _STAGES[stage]
            share(begin + (end - begin) * done)

    try:
        with local_copy(report, progress, scratch_folder()) as path:
            reader = reader_for(path)
            folder.mkdir(exist_ok=True)
            write_tables(path, reader, folder, progress, options, IN_PROCESS)
    except ReportError as error:
        return error
    except MemoryError:
        return ReportError(report, "the process that parsed it ran out of memory", _ALONE)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect that one report brings to light
        traceback.print_exc()
        problem = f"tracekit failed on it ({type(error).__name__})"
        return ReportError(report, problem, "report this as a bug of tracekit, with the traceback")
    return None


def parsed_away(report: Location, options: ParseOptions, share: Share) -> ReportError | dict[str, bytes]:
    """Parses a report on a machine that may share no folder for datasets with the one that asks for it.

    Returns the files of its dataset by their names, or why it could not be read.
    """
    host = socket.gethostname()
    if not is_remote(report) and not os.path.lexists(report):
        remedy = "give a path that the workers of the cluster see"
        return ReportError(report, f"does not exist on {host}", remedy)
    try:
        with temp_dir(parent=scratch_folder()) as scratch:
            folder = scratch / "part"
            error = parsed_into(folder, report, options, share)
            return error or {file.name: file.read_bytes() for file in folder.iterdir()}
    except OSError as error:
        problem = f"could not be parsed on {host} ({reason_of(error)})"
        return ReportError(report, problem, "free some space there, where temporary files go")
