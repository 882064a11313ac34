"""The file or folder that a user gave: its name, its size and its digest."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tracekit.recording.provenance import Source

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


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


def _name(path: Path) -> str:
    """The last part of the path as UTF-8, for the manifest holds nothing else."""
    return os.fsencode(path.absolute().name).decode("utf-8", "replace")
