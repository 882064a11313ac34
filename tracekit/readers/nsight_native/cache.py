"""Exports that are kept, so that a report is exported once: a folder each, below the user's cache folder.

An export is there whole or not at all, and never changed. The least recently used ones are removed when all together
take more than ``LARGEST_BYTES``. Where nothing can be kept, an export lives in a temporary folder while it is read.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: All kept exports together.
LARGEST_BYTES = 10 << 30
#: An export that was used within this time may still be read by another process.
_IN_USE_S = 3600
#: What is unfinished for so long was left behind by a process that was killed.
_LEFT_BEHIND_S = 86_400
_PARTIAL = ".partial-"
#: Lists the files of an export, next to them: a disk that fills up or a program that tidies up may take some of them.
_CONTENTS = "contents"


def cache_folder() -> Path:
    """Where exports are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # By the specification, a relative path is ignored.
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "tracekit" / "exports"


def kept(key: str) -> Path | None:
    """The folder of a kept export; None if there is none. One that is not whole is removed."""
    place = cache_folder() / key
    if not os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises where it may not look
        return None
    if not _is_whole(place):
        forget(key)
        return None
    with suppress(OSError):
        os.utime(place)  # used now
    return place


def forget(key: str) -> None:
    """Removes a kept export."""
    shutil.rmtree(cache_folder() / key, ignore_errors=True)


@contextmanager
def made(key: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """The folder of a new export while the block runs; it is kept if that is possible.

    Equal exports have equal keys. ``make`` fills an empty folder; if it raises, nothing is left.
    """
    parent, partial = _empty_folder()
    try:
        make(partial)
        yield _published(partial, parent / key) if parent else partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if parent:
        with suppress(OSError):
            _trim(parent)


def _empty_folder() -> tuple[Path | None, Path]:
    """An empty folder, below that of all exports where that can be written; None and a temporary one elsewhere."""
    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder, Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
    except OSError:
        return None, Path(tempfile.mkdtemp(prefix="tracekit-"))


def _published(partial: Path, place: Path) -> Path:
    """Where the export is now: where it was, if another process was faster or the place cannot be taken."""
    try:
        (partial / _CONTENTS).write_text(_contents(partial), "utf-8")
        return partial.rename(place)
    except OSError:
        return partial


def _is_whole(place: Path) -> bool:
    try:
        return (place / _CONTENTS).read_text("utf-8") == _contents(place)
    except (OSError, UnicodeError):
        return False


def _contents(place: Path) -> str:
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != _CONTENTS)
    return "".join(f"{path.stat().st_size} {path.relative_to(place)}\n" for path in files)


def _trim(folder: Path) -> None:
    """Removes what was left behind, and the least recently used exports while all are too large together."""
    now = time.time()
    entries = []
    for place in folder.iterdir():
        with suppress(OSError):
            entries.append((place.stat().st_mtime, place))
    total = 0
    for used, place in sorted(entries, reverse=True):
        unfinished = place.name.startswith(_PARTIAL)
        total += 0 if unfinished else _size_bytes(place)
        age = now - used
        if age > _LEFT_BEHIND_S if unfinished else total > LARGEST_BYTES and age > _IN_USE_S:
            shutil.rmtree(place, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return size
