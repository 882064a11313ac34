"""The protocol of a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.progress import Progress
    from tracekit.recording.tables import Recording


class Reader(Protocol):
    """A module that reads one format."""

    #: Its name in the manifest.
    NAME: str

    def recognises(self, path: Path, head: bytes, /) -> bool:
        """Whether the file or folder is of this format, judged by its content, never by its suffix.

        Args:
            path: The file or folder.
            head: The first 4,096 bytes of a file; empty for a folder.
        """

    def read(self, path: Path, progress: Progress, /) -> Recording:
        """Reads the whole file, which is opened read-only and never changed.

        Raises:
            ReportError: If it is damaged or lacks something essential.
        """
