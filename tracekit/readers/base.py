"""The protocol of a reader, and what is known of every report: its name, size and digest."""

import hashlib
import os
from pathlib import Path
from typing import Protocol

from tracekit.progress import Progress, no_progress
from tracekit.readers.table_folder import table_files
from tracekit.recording.provenance import Source
from tracekit.recording.tables import Recording
from tracekit.storage.local_copies import local_copy
from tracekit.storage.locations import Location


class Reader(Protocol):
    """A module that reads one format."""

    def recognises(self, path: Path, head: bytes, /) -> bool:
        """Whether the file or folder has this format, judged by its content, never by its suffix.

        ``head`` are the first 4,096 bytes of a file; empty for a folder.
        """

    def read(self, path: Path, progress: Progress, /) -> Recording:
        """Reads the whole file, which is opened read-only and never changed.

        Raises:
            ReportError: If it is damaged or lacks something essential.
        """


def source_of(path: Path, format_: str) -> Source:
    """What is known of a report; the digest of a folder is that of the names and digests of its files, sorted."""
    name = os.fsencode(path.absolute().name).decode("utf-8", "replace")
    if path.is_dir():
        files = [source_of(file, format_) for file in sorted(table_files(path).values())]
        digest = hashlib.sha256("".join(f"{file.sha256}  {file.name}\n" for file in files).encode())
        return Source(name, sum(file.size_bytes for file in files), digest.hexdigest(), format_)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return Source(name, path.stat().st_size, digest.hexdigest(), format_)


def sha256_of(report: Location) -> str:
    """The digest by which a report is known, whatever its format."""
    with local_copy(report, no_progress) as path:
        return source_of(path, "").sha256
