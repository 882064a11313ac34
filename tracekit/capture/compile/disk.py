"""Files of the compile cache: written to a temporary file and then moved into place, so they are never incomplete.

This module does not know PyTorch. A cache contains code, so a folder that others may write to is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING

from tracekit.files import UNFINISHED, whole_file

if TYPE_CHECKING:
    from pathlib import Path


_OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR
#: A temporary file older than this was left by a process that was killed.
_ABANDONED_S = 3600
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: Path) -> None:
    """Creates a folder that only its owner can enter. An existing folder is left as it is.

    Raises:
        OSError: If it cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def distrusted(folder: Path) -> str | None:
    """Why code from a folder must not be run; None if it may."""
    if not hasattr(os, "getuid"):
        return None
    status = folder.stat()
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    if status.st_mode & _OTHERS_MAY_WRITE:
        return "others may write to it (chmod go-w makes it usable)"
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is complete as soon as it exists, even if several processes write it at once.

    Raises:
        OSError: If it cannot be written. An earlier file is unchanged.
    """
    with whole_file(path, synced=True) as partial:
        partial.touch(mode=_OWNER_ONLY, exist_ok=False)
        partial.write_bytes(content)


def sweep_unfinished(folder: Path) -> None:
    """Removes temporary files that killed processes left.

    Raises:
        OSError: If the folder cannot be read.
    """
    for path in folder.glob(UNFINISHED):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _ABANDONED_S:
                discard(path)


def digest(content: bytes) -> str:
    """The SHA-256 digest of a content."""
    return hashlib.sha256(content).hexdigest()


class Blobs:
    """Contents by digest, which is checked when they are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, content: bytes) -> str:
        """Saves a content and returns its digest.

        Raises:
            OSError: If it cannot be written.
        """
        name = digest(content)
        path = self._folder / name
        if not (path.is_file() and path.stat().st_size == len(content)):
            write_whole(path, content)
        return name

    def get(self, name: str) -> bytes:
        """The content with this digest. A damaged file is removed, so that it will be written again.

        Raises:
            OSError: If it does not exist or cannot be read.
            ValueError: If it is damaged.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise ValueError(f"{name[:80]!r} is not a digest")
        path = self._folder / name
        content = path.read_bytes()
        if digest(content) != name:
            discard(path)
            raise ValueError(f"{path.name} is damaged")
        return content


def discard(path: Path) -> None:
    """Removes a file that cannot be used. If that fails, the file stays and will be rejected again."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
