"""Folders for what passes, and the removal of those that killed processes left behind.

Their names tell which process they belong to. One of a process of this machine that has ended goes at once, one of
another machine, which may share the disk, after it was left alone for a day.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.files import owned, this_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is left alone for so long, nobody works on any more.
_LEFT_ALONE_S = 86_400
_OWNER = re.compile(r"([0-9a-f]{8})-(\d+)-[0-9a-f]{8}")


@contextmanager
def passing_folder(prefix: str = "tracekit-", parent: str | None = None) -> Iterator[Path]:
    """An empty folder that is removed when the block ends, and by the next one like it if this process is killed.

    Args:
        prefix: How its name begins.
        parent: The folder to make it in; by default that of temporary files.
    """
    above = Path(parent or tempfile.gettempdir())
    remove_left_behind(above, prefix)
    folder = above / f"{prefix}{owned()}"
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind(above: Path, prefix: str) -> None:
    """Removes what killed processes left in a folder under names that begin so."""
    with suppress(OSError):
        for left in [path for path in above.iterdir() if path.name.startswith(prefix)]:
            owner = _OWNER.fullmatch(left.name.removeprefix(prefix))
            if owner is not None and _is_left_behind(left, owner[1], int(owner[2])):
                shutil.rmtree(left, ignore_errors=True)


def _is_left_behind(folder: Path, machine: str, process: int) -> bool:
    if machine != this_machine():
        return _changed_s(folder) < time.time() - _LEFT_ALONE_S
    import psutil  # noqa: PLC0415 - rarely is there anything

    return not psutil.pid_exists(process)


def _changed_s(folder: Path) -> float:
    """When anything in a folder was last changed."""
    latest = folder.stat().st_mtime
    for path in folder.rglob("*"):
        with suppress(OSError):
            latest = max(latest, path.stat().st_mtime)
    return latest
