"""What an agent may read: files below the folders that the server was started with, and datasets that it made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import has_magic
from itertools import chain, takewhile
from pathlib import Path

from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import SUFFIX
from tracekit.errors import ReportError, UsageError
from tracekit.storage.locations import expanded

#: Names of reports end so.
_REPORTS = (".sqlite", ".nsys-rep", ".qdrep", ".json", ".json.gz", ".nvprof", ".nvvp")
#: How many files are looked at to list them.
_MOST_LOOKED_AT = 100_000


class Folders:
    """Folders below which everything may be read, and nothing else."""

    def __init__(self, folders: Sequence[Path], scratch: Path) -> None:
        """Resolves them.

        Args:
            folders: Those that the server was started with; other paths are relative to the first.
            scratch: The folder of the datasets that it makes.
        """
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
        """A path that may be read, without links.

        Raises:
            UsageError: If it may not.
        """
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
