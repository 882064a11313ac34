"""Several reports, such as one per rank, parsed side by side into one dataset."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.dataset.joining import Part, join
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import load
from tracekit.dataset.writing import writing
from tracekit.errors import ReportsError, UsageError
from tracekit.pipeline.processes import Task, parsed_side_by_side

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress

#: So far apart are the ids of reports. No report has as many rows, and in 8,000 reports no id loses a digit as a
#: floating-point number. ``id >> 40`` is the report's number.
IDS_PER_REPORT = 1 << 40

_LONGEST_NAME = 200
#: What readers of partitions take for a number, a date or nothing.
_NO_TEXT = re.compile(r"([\d+-][\da-fxtz._+-]*|null)?", re.IGNORECASE)


def parse_several(
    paths: Sequence[Path], out: str | os.PathLike[str] | None, *, force: bool, progress: Progress
) -> Dataset:
    """Reads reports side by side and writes one dataset of all that can be read.

    Args:
        paths: The reports.
        out: Folder of the dataset.
        force: Whether a dataset that is there may be replaced.
        progress: Told how far each report is, by its name.

    Raises:
        ReportsError: If some cannot be read; if all, nothing was written.
        DatasetError: If the dataset cannot be written.
        UsageError: If there is no report, one is given twice, or the folder is missing.
    """
    _check(paths)
    if out is None:
        raise UsageError("several reports make one dataset: name its folder with -o")
    folder = Path(out)
    names = report_names(paths)
    with writing(folder, force=force) as (partial, place):
        parts = [Part(name, partial / f".{name}", number * IDS_PER_REPORT) for number, name in enumerate(names)]
        tasks = [Task(path, part.name, part.folder, part.first_id) for path, part in zip(paths, parts, strict=True)]
        outcomes = zip(names, parsed_side_by_side(tasks, progress), strict=True)
        bad = {name: error for name, error in outcomes if error is not None}
        for part in parts:
            if part.name in bad:
                shutil.rmtree(part.folder, ignore_errors=True)
        if len(bad) == len(parts):
            raise ReportsError(bad.values(), None)
        good = [part for part in parts if part.name not in bad]
        left_out = [{"name": name, "problem": error.problem} for name, error in bad.items()]
        join(partial, good, left_out, progress)
    folder = folder if (folder / MANIFEST).exists() else place
    if bad:
        raise ReportsError(bad.values(), folder)
    return load(folder)


def _check(paths: Sequence[Path]) -> None:
    """Every report must be there once."""
    if not paths:
        raise UsageError("there is no report to parse")
    seen: dict[object, Path] = {}
    for path in paths:
        try:
            status = path.stat()
            key: object = (status.st_dev, status.st_ino)
        except OSError:
            key = path.absolute()
        if (before := seen.setdefault(key, path)) is not path:
            same = "" if before == path else f", the same file as {before}"
            raise UsageError(f"{path} is given twice{same}; name every report once")


def report_names(paths: Sequence[Path]) -> list[str]:
    """A name for every report that is a safe name of a folder and unlike all others, letter case aside.

    It is the stem of the file's name; where several are alike, with the name of the folder before it, and where
    even these are, with a number behind.
    """
    stems = [_safe(path.stem) for path in paths]
    often = Counter(stem.casefold() for stem in stems)
    names: dict[str, str] = {}
    for path, stem in zip(paths, stems, strict=True):
        above = path.absolute().parent.name
        wanted = _safe(f"{above}-{path.stem}") if often[stem.casefold()] > 1 and above else stem
        name, number = wanted, 1
        while name.casefold() in names:
            number += 1
            name = f"{wanted}-{number}"
        names[name.casefold()] = name
    return list(names.values())


def _safe(text: str) -> str:
    """Letters, digits, dots, dashes and underscores; short, and nothing that could be a number, a date or null."""
    kept = [letter if letter.isalnum() or letter in ".-_" else "_" for letter in unicodedata.normalize("NFC", text)]
    name = "".join(kept).encode()[:_LONGEST_NAME].decode("utf-8", "ignore").lstrip("._")
    return f"report_{name}" if _NO_TEXT.fullmatch(name) else name
