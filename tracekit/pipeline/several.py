"""Several reports, such as one per rank, parsed side by side into one dataset."""

import os
import re
import shutil
import socket
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path

from tracekit.dataset.joining import Part, join
from tracekit.dataset.opening import Dataset, load
from tracekit.dataset.writing import as_named, default_folder, writing
from tracekit.engines import Engine, Outcome, Task, opened
from tracekit.engines.base import IN_PROCESS, Share
from tracekit.engines.dask import scratch_folder
from tracekit.errors import ReportError, ReportsError, UsageError
from tracekit.files import reason_of
from tracekit.pipeline.processes import write_tables
from tracekit.pipeline.stages import ParseOptions, Run, needed_bytes
from tracekit.progress import of_all
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

#: Why a report could not be read; of a machine that shares no folder, else, the files of its dataset by their names.
_Parsed = ReportError | dict[str, bytes] | None


def parse_several(paths: Sequence[Location], out: Path | None, options: ParseOptions, run: Run) -> Dataset:
    """Lets an engine read reports and writes one dataset of all that can be read; that of a single one is its own."""
    _check_given(paths)
    alone = len(paths) == 1
    if out is None and not alone:
        raise UsageError("several reports become one dataset; name its folder with -o")
    out = out or default_folder(Path(str(paths[0])))
    with writing(out, force=run.force) as (partial, place):
        parts = [
            Part(name, partial if alone else partial / f".{name}", number * IDS_PER_REPORT)
            for number, name in enumerate(report_names(paths))
        ]
        errors = _parse_parts(paths, parts, options, run)
        if len(errors) == len(parts):
            raise errors[parts[0].name] if alone else ReportsError(errors.values(), None)
        if not alone:
            readable = [part for part in parts if part.name not in errors]
            left_out = [{"name": name, "problem": error.problem} for name, error in errors.items()]
            join(partial, readable, left_out, run.progress)
    folder = as_named(out, place)
    if errors:
        raise ReportsError(errors.values(), folder)
    return load(folder)


def _check_given(paths: Sequence[Location]) -> None:
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


def _parse_parts(
    paths: Sequence[Location], parts: Sequence[Part], options: ParseOptions, run: Run
) -> dict[str, ReportError]:
    """Parses reports side by side, each into its folder; why some cannot be read, by their names."""
    progress = run.progress
    if len(parts) > _MOST_NAMED:
        progress = of_all(f"{len(parts)} reports", len(parts), run.progress)
    errors: dict[int, ReportError] = {}
    with opened(run.scheduler) as engine:
        needed = in_order(needed_bytes, paths, paths[0]) if engine.shares_files else repeat(0)
        tasks = [
            Task(part.name, _parsing(engine, part, path, options), bytes_)
            for part, path, bytes_ in zip(parts, paths, needed, strict=False)
        ]
        for outcome in engine.outcomes(tasks, progress):
            if error := _error_of(outcome, parts[outcome.number], paths[outcome.number]):
                errors[outcome.number] = error
                shutil.rmtree(parts[outcome.number].folder, ignore_errors=True)
    return {parts[number].name: errors[number] for number in sorted(errors)}


def _error_of(outcome: Outcome[_Parsed], part: Part, report: Location) -> ReportError | None:
    """Why a report could not be parsed; files that came from another machine are put into its folder."""
    if outcome.lost is not None:
        return ReportError(report, f"the process that parsed it ended early ({outcome.lost})", _ALONE)
    if not isinstance(outcome.result, dict):
        return outcome.result
    part.folder.mkdir(exist_ok=True)
    for name, content in outcome.result.items():
        (part.folder / name).write_bytes(content)
    return None


def _parsing(engine: Engine, part: Part, report: Location, options: ParseOptions) -> Callable[[Share], _Parsed]:
    options = replace(options, first_id=part.first_id)
    if engine.shares_files:
        return partial(parsed_into, part.folder, report, options)
    captures = tuple(path.absolute() for path in options.graph_captures)
    return partial(parsed_away, report.absolute(), replace(options, graph_captures=captures))


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


def parsed_away(report: Location, options: ParseOptions, share: Share) -> _Parsed:
    """Parses a report on a machine that may share no folder for datasets with the one that asks for it."""
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
