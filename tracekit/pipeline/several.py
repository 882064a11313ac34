"""Several reports, such as one per rank, parsed side by side into one dataset."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.dataset.joining import Part, join
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import load
from tracekit.dataset.sending import names_sent
from tracekit.dataset.writing import writing
from tracekit.errors import ReportsError, UsageError
from tracekit.pipeline.run import Parsed
from tracekit.pipeline.side_by_side import Wanted, parsed_side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.errors import ReportError
    from tracekit.pipeline.one import Wishes
    from tracekit.pipeline.run import Run
    from tracekit.storage.locations import Location

#: Distance between the first ids of reports. No report has so many rows, and with up to 8,000 reports every id is exact
#: as a floating-point number. ``id >> 40`` is the report's number.
IDS_PER_REPORT = 1 << 40

_LONGEST_NAME = 200
#: Names that readers of partitions would parse as a number, a date or null.
_NOT_TEXT = re.compile(r"([\d+-][\da-fxtz._+-]*|null)?", re.IGNORECASE)


def parse_several(paths: Sequence[Location], out: Path | None, wishes: Wishes, run: Run) -> Parsed:
    """Reads reports side by side and writes one dataset of all that can be read.

    Args:
        paths: The reports.
        out: Folder of the dataset.
        wishes: What is asked of the dataset of each report.
        run: How they are parsed.

    Raises:
        ReportsError: If some cannot be read; if all, nothing was written.
        DatasetError: If the dataset cannot be written.
        UsageError: If there is no report, one is given twice, or the folder is missing.
    """
    check_given(paths)
    if out is None:
        raise UsageError("several reports become one dataset; name its folder with -o")
    folder = out
    with writing(folder, force=run.force) as (partial, place):
        parts = _parts(paths, partial, run)
        errors = parse_parts(paths, parts, wishes, run)
        if len(errors) == len(parts):
            raise ReportsError(errors.values(), None)
        readable = [part for part in parts if part.name not in errors]
        left_out = [{"name": name, "problem": error.problem} for name, error in errors.items()]
        join(partial, readable, left_out, run.progress)
    folder = folder if (folder / MANIFEST).exists() else place
    if errors:
        raise ReportsError(errors.values(), folder)
    return Parsed(load(folder), [])


def check_given(paths: Sequence[Location]) -> None:
    """Every report must be given once.

    Raises:
        UsageError: If there is none, or one is given twice.
    """
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
    """Equal for two paths of one file."""
    if not isinstance(path, Path):
        return str(path)
    try:
        status = path.stat()
    except OSError:
        return path.absolute()
    return (status.st_dev, status.st_ino)


def _parts(paths: Sequence[Location], folder: Path, run: Run) -> list[Part]:
    """Where the tables of each report go until they are joined, and from which number their ids are counted."""
    return [
        Part(name, folder / f".{name}", number * IDS_PER_REPORT, run.sent_to(name))
        for number, name in enumerate(report_names(paths))
    ]


def parse_parts(paths: Sequence[Location], parts: Sequence[Part], wishes: Wishes, run: Run) -> dict[str, ReportError]:
    """Parses the reports side by side; why some cannot be read, by their names."""
    reports = [
        Wanted(part.name, path, part.folder, replace(wishes, first_id=part.first_id), part.sent_to)
        for path, part in zip(paths, parts, strict=True)
    ]
    errors: dict[int, ReportError] = {}
    for number, error in parsed_side_by_side(reports, run.scheduler, run.progress):
        if error is not None:
            errors[number] = error
            shutil.rmtree(parts[number].folder, ignore_errors=True)
        elif run.target is not None and (sent_to := parts[number].sent_to) is not None:
            run.target.put.update(names_sent(parts[number].folder, sent_to))
    return {parts[number].name: errors[number] for number in sorted(errors)}


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
        name, number = wanted, 1
        while name.casefold() in names:
            number += 1
            name = f"{wanted}-{number}"
        names[name.casefold()] = name
    return list(names.values())


def _safe(text: str) -> str:
    """Letters, digits, dots, dashes and underscores; short, and never parsed as a number, a date or null."""
    kept = [letter if letter.isalnum() or letter in ".-_" else "_" for letter in unicodedata.normalize("NFC", text)]
    name = "".join(kept).encode()[:_LONGEST_NAME].decode("utf-8", "ignore").lstrip("._")
    return f"report_{name}" if _NOT_TEXT.fullmatch(name) else name
