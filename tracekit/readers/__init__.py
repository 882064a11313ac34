"""Stage 2: a report on disk becomes a :class:`~tracekit.recording.tables.Recording`. The only room with SQL.

To add a format: write ``readers/<format>.py`` (or a sub-room) with the three names of
:class:`~tracekit.readers.base.Reader`, add the module to ``READERS`` and to the contract of strangers in
``pyproject.toml``, and a few lines of such a file with the expected rows to ``tests/readers``.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from tracekit.errors import ReportError
from tracekit.readers import exported, kineto, nsight_folder, nsight_native, nsight_sqlite, nvprof
from tracekit.readers.foreign import foreign_file, foreign_folder

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.base import Reader

READERS: tuple[Reader, ...] = (nsight_sqlite, nsight_folder, nsight_native, nvprof, exported, kineto)

_HEAD_BYTES = 4096


def reader_for(path: Path) -> Reader:
    """The reader that recognises the file or folder.

    Raises:
        ReportError: If there is no such file, it cannot be opened, or no reader recognises it.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ReportError(path, "is a pipe or device", "expected a report file such as report.sqlite")
        head = b"" if stat.S_ISDIR(mode) else _head(path)
    except FileNotFoundError:
        raise ReportError(path, "does not exist", "check the path") from None
    except OSError as error:
        raise ReportError(path, f"cannot be opened ({error.strerror})", "check the path and its permissions") from None
    for reader in READERS:
        if reader.recognises(path, head):
            return reader
    raise foreign_folder(path) if stat.S_ISDIR(mode) else foreign_file(path, head)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)
