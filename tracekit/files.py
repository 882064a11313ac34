"""Files and folders that are written whole or not at all: datasets, exports, pages, reports, cached code.

What is written grows under a hidden name next to its place and takes the place when it is complete. If anything goes
wrong before that, Ctrl-C included, it is removed and whatever was at the place stays as it was. Knows nothing of what
the files hold, and raises only :class:`OSError`: callers turn that into an error with advice.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import shutil
import signal
import threading
from contextlib import contextmanager, suppress
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    #: Raises the caller's error if something is at the place that must not be replaced.
    Check = Callable[[], object]
    _Handler = Callable[[int, FrameType | None], object]

#: How the hidden names of unfinished files and folders can be found.
UNFINISHED = ".*.partial-*"
_ADVICE = {
    errno.ENOENT: "create its folder",
    errno.EACCES: "make its folder writable",
    errno.EPERM: "make its folder writable",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "free some space",
    None: "free some space",  # libraries may not report it
}
#: Ctrl-C, the polite kill, and a terminal that closes, which Windows does not know.
_STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
#: How much of two names must be the same, as difflib counts, for one to be meant by the other.
_CLOSE = 0.75
#: Arguments of Linux's renameat2: paths that no open folder precedes, and both of which exist.
_HERE, _EXCHANGE = -100, 2


def hidden_next_to(place: Path, state: str = "partial") -> Path:
    """A hidden name in the same folder, different each time: threads, processes and machines may share a folder."""
    return place.with_name(f"{hidden_prefix(place, state)}{owned()}")


def hidden_prefix(place: Path, state: str = "partial") -> str:
    """How these names begin."""
    return f".{place.name}.{state}-"


def owned() -> str:
    """The end of a name, different each time, that shows which process it belongs to: its machine, its number."""
    return f"{this_machine()}-{os.getpid()}-{os.urandom(4).hex()}"


@cache
def this_machine() -> str:
    """What all processes have in common that know each other by the same numbers, as long as the machine runs."""
    text = platform.node()
    with suppress(OSError):
        running = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        text = running + os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - what it names is no path
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def reason_of(error: OSError) -> str:
    """Why the system refused, on one line."""
    return " ".join(str(error.strerror or error).split())


def remedy_of(error: OSError, elsewhere: str) -> str:
    """What to do about it, such as ``free some space or choose another folder``, where the latter is ``elsewhere``."""
    advice = _ADVICE.get(error.errno)
    return f"{advice} or {elsewhere}" if advice else elsewhere


@contextmanager
def whole_file(place: Path, check: Check = lambda: None) -> Iterator[Path]:
    """A path to write to that replaces ``place`` when the block ends, and is removed when the block raises.

    ``check`` is called just before the file takes its place: writing takes time, and others write too.
    """
    partial = hidden_next_to(place)
    try:
        yield partial
        check()
        partial.replace(place)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(place: Path, check: Check = lambda: None) -> Iterator[Path]:
    """As :func:`whole_file`, an empty folder to fill."""
    partial = hidden_next_to(place)
    try:
        partial.mkdir()
        yield partial
        check()
        _replace_folder(partial, place)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def parents_made(place: Path) -> Iterator[None]:
    """Makes the folders above ``place``, and removes those it made if the block raises."""
    missing = [above for above in place.parents if not above.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for above in missing:
            with suppress(OSError):
                above.rmdir()
        raise


@contextmanager
def stopped_once() -> Iterator[None]:
    """Lets the first signal stop the block and ignores later ones until its cleanup is done: people press Ctrl-C twice.

    Only signals whose handler is Python code are guarded, and only in the main thread, where Python delivers them.
    """
    handlers = _handlers()

    def first(number: int, frame: FrameType | None) -> None:
        _handle(handlers, lambda *_: None)
        handlers[number](number, frame)
        _handle(handlers, first)  # the handler did not raise: the block goes on

    with _handled_by(first, handlers):
        yield


@contextmanager
def stops_held() -> Iterator[None]:
    """Answers signals that stop at the end of the block: amid Popen they would leave an unknown process."""
    held: list[int] = []
    with _handled_by(lambda number, _: held.append(number), _handlers()):
        yield
    for number in held:
        signal.raise_signal(number)


def _handlers() -> dict[int, _Handler]:
    """The handlers of signals that stop, as far as these are Python code; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    current = {number: signal.getsignal(number) for number in _STOPPING}
    return {number: handler for number, handler in current.items() if callable(handler)}


@contextmanager
def _handled_by(handler: _Handler, handlers: dict[int, _Handler]) -> Iterator[None]:
    """Handles signals by one handler in place of theirs."""
    _handle(handlers, handler)
    try:
        yield
    finally:
        for number, own in handlers.items():
            signal.signal(number, own)


def _handle(numbers: Iterable[int], handler: _Handler) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _replace_folder(partial: Path, place: Path) -> None:
    if place.is_dir() and _exchanged(partial, place):
        _remove(partial)  # what was there
        return
    old = hidden_next_to(place, "old")
    try:
        if place.exists():
            place.rename(old)
        partial.rename(place)
    except BaseException:  # also when stopped between the two
        if old.exists() and not place.exists():
            old.rename(place)
        _remove(old)  # still there if another process took the place first
        raise
    _remove(old)


def _exchanged(one: Path, other: Path) -> bool:
    """Swaps two folders in one step, so that one always exists; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux
        return False
    return bool(rename(_HERE, os.fsencode(one.absolute()), _HERE, os.fsencode(other.absolute()), _EXCHANGE) == 0)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def similar(path: Path, is_one: Callable[[Path], bool]) -> Path | None:
    """What was probably meant by a path: something next to it that is one and has nearly its name, but for suffixes."""
    beside = sorted(path.parent.glob("*"))
    stems = get_close_matches(path.stem, {found.stem for found in beside}, 3, _CLOSE)
    close = [found for found in beside if found.stem in stems]
    close.sort(key=lambda found: SequenceMatcher(None, found.name, path.name).ratio(), reverse=True)
    return next((path.with_name(found.name) for found in close if found.exists() and is_one(found)), None)


def is_name(text: str) -> bool:
    """Whether a text can be written and be part of a path: one with a zero or half a character cannot."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
