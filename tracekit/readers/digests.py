"""The file or folder that a user gave: its name, its size and its digest."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tracekit.progress import silent
from tracekit.readers.folder.files import table_files
from tracekit.recording.provenance import Source
from tracekit.storage.local_copies import brought

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracekit.storage.locations import Location


def source_of_file(path: Path, format_: str) -> Source:
    """What is known of a report that is one file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Source(_name(path), path.stat().st_size, digest, format_)


def source_of_folder(path: Path, files: Iterable[Path], format_: str) -> Source:
    """What is known of a report that is a folder of files; its digest is that of their names and digests, sorted."""
    digest, size = hashlib.sha256(), 0
    for part in sorted(files):
        source = source_of_file(part, format_)
        digest.update(f"{source.sha256}  {source.name}\n".encode())
        size += source.size_bytes
    return Source(_name(path), size, digest.hexdigest(), format_)


def sha256_of(report: Location) -> str:
    """The digest by which a report is known, whatever its format."""
    with brought(report, silent) as path:
        if path.is_dir():
            return source_of_folder(path, table_files(path).values(), "").sha256
        return source_of_file(path, "").sha256


def _name(path: Path) -> str:
    """The last part of the path as UTF-8, for the manifest holds nothing else."""
    return os.fsencode(path.absolute().name).decode("utf-8", "replace")
