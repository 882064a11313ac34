"""Files of the cache: written whole under a name of their own and moved into place, or not at all.

Nothing here knows PyTorch. What lies in a cache is code: a folder that others may write to is not read from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from pathlib import Path

_UNFINISHED = ".new-"
#: Nobody takes this long to write a file: who began it was killed.
_ABANDONED_S = 3600
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: Path) -> None:
    """Makes a folder that its owner alone can enter; one that is there is left as it is.

    Raises:
        OSError: It cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def distrusted(folder: Path) -> str | None:
    """Why code from a folder must not be run, or None."""
    if not hasattr(os, "getuid"):
        return None
    found = folder.stat()
    if found.st_uid != os.getuid():
        return "it belongs to another user"
    if found.st_mode & _OTHERS_MAY_WRITE:
        return "others may write to it (chmod go-w makes it usable)"
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or not at all, however many processes write it at once.

    Raises:
        OSError: It cannot be written; what was there before is untouched.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sweep_unfinished(folder: Path) -> None:
    """Removes files that processes were killed over.

    Raises:
        OSError: The folder cannot be read.
    """
    for path in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _ABANDONED_S:
                discard(path)


def digest(content: bytes) -> str:
    """What a content is known by."""
    return hashlib.sha256(content).hexdigest()


class Blobs:
    """Contents by their digest, so that what is read is what was written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, content: bytes) -> str:
        """Keeps a content and returns its digest.

        Raises:
            OSError: It cannot be written.
        """
        name = digest(content)
        path = self._folder / name
        if not (path.is_file() and path.stat().st_size == len(content)):
            write_whole(path, content)
        return name

    def get(self, name: str) -> bytes:
        """The content of this digest; a damaged one is removed, so that it is written anew.

        Raises:
            OSError: It is not there or cannot be read.
            ValueError: It is damaged.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise ValueError(f"{name[:80]!r} is no digest")
        path = self._folder / name
        content = path.read_bytes()
        if digest(content) != name:
            discard(path)
            raise ValueError(f"{path.name} is damaged")
        return content


def discard(path: Path) -> None:
    """Removes a file that is of no use; one that cannot be removed is found useless again."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
