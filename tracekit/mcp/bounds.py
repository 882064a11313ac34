"""Bounds of what an agent may ask, read and get.

Arguments that no tool can mean are refused. Files are read below the folders that the server was started with, and
datasets that it made. Answers are cut to a size that an agent can read.
"""

import json
import math
import os
import shlex
from collections.abc import Sequence
from glob import has_magic
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import SUFFIX
from tracekit.errors import ReportError, UsageError, plain
from tracekit.files import is_name
from tracekit.storage.locations import expanded
from tracekit.views.formatting import shortened

#: The most characters of an answer as JSON, and of a text in it.
MOST_CHARACTERS = 24_000
_LONGEST = 400
#: The most items of every list in it: the first of these that is short enough.
_MOST = (200, 100, 50, 25, 12, 6, 3, 1)
#: Limits of arguments: no path and no pattern is longer, no call needs more values.
_LONGEST_ARGUMENT, _MOST_ARGUMENTS = 4_096, 1_000
#: Names of reports end so.
_REPORTS = (".sqlite", ".nsys-rep", ".qdrep", ".json", ".json.gz", ".nvprof", ".nvvp")
#: How many files are looked at to list them.
_MOST_LOOKED_AT = 100_000

Answer = dict[str, Any]


def refused(arguments: object) -> str | None:
    """Why a call is refused because of its arguments, as JSON gives them; None if it is not."""
    waiting, seen = [arguments], 0
    while waiting:
        value, seen = waiting.pop(), seen + 1
        if seen > _MOST_ARGUMENTS:
            return f"more than {_MOST_ARGUMENTS:,} arguments"
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and len(value) > _LONGEST_ARGUMENT:
            return f"a text of {len(value):,} characters; expected at most {_LONGEST_ARGUMENT:,}"
        elif isinstance(value, str) and not is_name(value):
            return "a text with characters that no name has"
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{value} is not a number"
    return None


class Folders:
    """Folders below which everything may be read, and nothing else."""

    def __init__(self, folders: Sequence[Path], scratch: Path) -> None:
        """Resolves them. Other paths are relative to the first; datasets are made in ``scratch``."""
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"{folder}: is not a folder")
        self.folders = [folder.resolve() for folder in folders]
        self.scratch = scratch.resolve()

    def paths(self, texts: Sequence[str]) -> list[Path]:
        """Paths that may be read, without links, of paths and patterns.

        Raises:
            ReportError: If a pattern matches nothing.
            UsageError: If one may not be read, or something that a pattern matches.
        """
        found = []
        for text in texts:
            whole = self.folders[0] / text
            # Nothing is looked for outside: that would show what is there.
            self._resolved(str(Path(*takewhile(lambda part: not has_magic(part), whole.parts))))
            if whole.parts.count("**") > 1:
                raise UsageError(f"{text}: has ** twice, which may take forever; the tool files lists reports")
            found += [self.path(str(match)) for match in expanded([whole], ReportError)]
        return found

    def path(self, text: str) -> Path:
        """A path that may be read, without links; raises UsageError if it may not."""
        path = self._resolved(text)
        below = (Path(folder, name) for folder, *found in os.walk(path) for name in chain(*found))
        if not all(self._may_read(file.resolve()) for file in below if file.is_symlink()):
            raise UsageError(f"{text}: links to files outside the folders that may be read: {self._names}")
        return path

    def _resolved(self, text: str) -> Path:
        path = (self.folders[0] / text).resolve()
        if not self._may_read(path):
            raise UsageError(f"{text}: lies outside the folders that may be read: {self._names}")
        return path

    @property
    def _names(self) -> str:
        return ", ".join(map(str, self.folders))

    def _may_read(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in (*self.folders, self.scratch))

    def listed(self) -> dict[str, list[str]]:
        """Datasets and files that may be reports, by their names."""
        found: dict[str, list[str]] = {"datasets": [], "reports": []}
        looked_at = 0
        for folder, below, names in chain.from_iterable(map(os.walk, (*self.folders, self.scratch))):
            is_dataset = MANIFEST in names
            below[:] = [] if is_dataset else sorted(name for name in below if not name.startswith("."))
            looked_at += len(names) + 1
            if looked_at > _MOST_LOOKED_AT:
                break
            if is_dataset:
                found["datasets"].append(str(folder))
            else:
                found["reports"] += [str(Path(folder, name)) for name in sorted(names) if name.endswith(_REPORTS)]
        return found

    def new_dataset(self, report: Path) -> Path:
        """Where the dataset of a report goes."""
        number = sum(1 for _ in self.scratch.iterdir())
        return self.scratch / f"{number}-{report.name.partition('.')[0]}{SUFFIX}"


def bounded(answer: Any, command: Sequence[object]) -> Answer:  # noqa: ANN401 - plain data
    """An answer that is cut to size.

    Args:
        answer: Plain data.
        command: The words of the command that prints all of it.

    Returns:
        ``answer``, ``complete`` (whether nothing was cut off) and ``command``.
    """
    whole = cut = _cut(answer, None)
    for most in _MOST:
        if len(as_text(cut)) <= MOST_CHARACTERS:
            break
        cut = _cut(answer, most)
    if len(as_text(cut)) > MOST_CHARACTERS:
        cut = None
    return {"answer": cut, "complete": cut == whole, "command": shlex.join(map(str, command))}


def as_text(answer: Any) -> str:  # noqa: ANN401 - plain data
    """Plain data as JSON in the fewest characters."""
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


def _cut(value: Any, most: int | None) -> Any:  # noqa: ANN401 - plain data
    if isinstance(value, str):
        return plain(shortened(value, _LONGEST), keep="\n")
    if isinstance(value, dict):
        return {_cut(str(name), most): _cut(item, most) for name, item in value.items()}
    return [_cut(item, most) for item in value[:most]] if isinstance(value, list | tuple) else value
