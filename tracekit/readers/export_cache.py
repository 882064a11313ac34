"""Exports that are kept, so that a report is exported once: a folder each, below the user's cache folder.

An export is there whole or not at all, and never changed. The least recently used ones are removed when all together
take more than ``LARGEST_BYTES``. If nothing can be kept, an export lives in a temporary folder while it is read.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracekit.storage.local_copies import temp_dir

#: All kept exports together.
LARGEST_BYTES = 10 << 30
#: An export that was used within this time may still be read by another process.
_IN_USE_S = 3600
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
    try:
        whole = (place / _CONTENTS).read_text("utf-8") == _contents(place)
    except (OSError, UnicodeError):
        whole = False
    if not whole:
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
    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keeps = os.access(folder, os.W_OK)
    except OSError:
        keeps = False
    with temp_dir(_PARTIAL, folder if keeps else None) as partial:
        make(partial)
        place = partial
        if keeps:
            with suppress(OSError):  # another process was faster, or the disk is full
                (partial / _CONTENTS).write_text(_contents(partial), "utf-8")
                place = partial.rename(folder / key)
        yield place
    if keeps:
        with suppress(OSError):
            _trim(folder)


def _contents(place: Path) -> str:
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != _CONTENTS)
    return "".join(f"{path.stat().st_size} {path.relative_to(place)}\n" for path in files)


def _trim(folder: Path) -> None:
    """Removes the least recently used exports while all are too large together."""
    kept = [(place.stat().st_mtime, place) for place in folder.iterdir() if not place.name.startswith(_PARTIAL)]
    total = 0
    for used, place in sorted(kept, reverse=True):
        total += sum(path.stat().st_size for path in place.rglob("*"))
        if total > LARGEST_BYTES and time.time() - used > _IN_USE_S:
            shutil.rmtree(place, ignore_errors=True)
