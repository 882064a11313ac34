"""Folders in which Inductor and Triton work for one process, and which of their files are worth keeping.

Every process works in a folder of its own: what another one is still writing, or was killed over, is never seen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from torch._inductor import cpu_vec_isa
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch._inductor.utils import clear_caches

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.platform != "win32":
    import fcntl

#: Inductor's and Triton's variables, and the folders that they name.
_PLACES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
#: What a piece's artifact holds itself, or what serves one process only.
_NOT_KEPT = {"fxgraph", "aotautograd", "locks", "triton", "dynamo", "precompiled_headers"}
_NOT_KEPT_SUFFIXES = {".lock", ".tmp", ".cpp", ".o", ".txt"}
#: A disk with less room than this is no place to compile in.
_ROOM_BYTES = 64 << 20
#: Where Inductor tried what the processor can do in this process: it never tries again.
_PROBE = b"_chk_kernel"
_PROBE_BYTES = 4096
#: Inductor's folders of this process so far.
_USED: list[Path] = []
_ENVIRONMENT = threading.RLock()


class Scratch:
    """One process's working folder."""

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        self.folder = folder
        self._lock = lock
        for name in _PLACES.values():
            (folder / name).mkdir()
        _copy_probes(folder / "inductor")
        _USED.append(folder / "inductor")

    def remove(self) -> None:
        """Removes the folder; libraries that were loaded from it stay loaded."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            _lock_of(self.folder).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """While it is entered, Inductor and Triton work in it; one thread and one scratch at a time."""
        with _ENVIRONMENT:
            if os.environ.get("TORCHINDUCTOR_CACHE_DIR") == str(self.folder / "inductor"):
                yield
                return
            before = {name: os.environ.get(name) for name in _PLACES}
            os.environ.update({name: str(self.folder / sub) for name, sub in _PLACES.items()})
            clear_caches()  # what Inductor made elsewhere must be made here too, to be kept
            try:
                yield
            finally:
                clear_caches()
                for name, value in before.items():
                    os.environ.pop(name, None)
                    os.environ.update({name: value} if value is not None else {})

    def kept_files(self) -> dict[str, Path]:
        """Files that a later process needs to run what was compiled here, by their path in the folder."""
        top = self.folder / "inductor"
        return {
            path.relative_to(top).as_posix(): path
            for path in sorted(top.rglob("*"))
            if path.is_file() and _is_kept(path.relative_to(top))
        }

    def place(self, name: str) -> Path:
        """Where a kept file goes.

        Raises:
            ValueError: The name leads out of the folder.
        """
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\\" in name:
            raise ValueError(f"{name!r} is no path below a folder")
        return self.folder / "inductor" / Path(*parts)


def _is_kept(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and path.parts[0] not in _NOT_KEPT and path.suffix not in _NOT_KEPT_SUFFIXES


def _copy_probes(folder: Path) -> None:
    """Inductor's trials of instruction sets run once a process: later folders get what the first has found."""
    if not cpu_vec_isa.valid_vec_isa_list.cache_info().currsize:
        return
    for library in _probes():
        target = folder / library.parent.name
        target.mkdir(exist_ok=True)
        shutil.copy2(library, target / library.name)


def _probes() -> list[Path]:
    """The libraries with which this process tried the processor, wherever it did so."""
    places = [Path(default_cache_dir()), *_USED]
    codes = [code for place in places for code in place.glob("??/*.cpp")]
    small = [code for code in codes if code.stat().st_size < _PROBE_BYTES]
    tried = [code.with_suffix(".so") for code in small if _PROBE in code.read_bytes()]
    return [library for library in tried if library.is_file()]


def scratch_in(folder: Path) -> Scratch:
    """A new working folder in a folder; those that killed processes left are removed.

    Raises:
        OSError: Nothing can be written there, or there is no room.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if shutil.disk_usage(folder).free < _ROOM_BYTES:
        raise OSError(f"less than {_ROOM_BYTES >> 20} MiB free")
    _sweep(folder)
    name = folder / f"{os.getpid()}-{os.urandom(4).hex()}"
    lock = _claimed(_lock_of(name))
    name.mkdir(mode=0o700)
    return Scratch(name, lock)


def scratch_elsewhere() -> Scratch:
    """A new working folder where the system keeps temporary files."""
    return Scratch(Path(tempfile.mkdtemp(prefix="tracekit-compile-")))


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _claimed(path: Path) -> int | None:
    """An open file that is locked for as long as this process lives; None where another one holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _sweep(folder: Path) -> None:
    """Removes working folders whose process is gone."""
    if sys.platform == "win32":
        return
    for left in folder.iterdir():
        if left.is_dir() and (handle := _claimed(_lock_of(left))) is not None:
            shutil.rmtree(left, ignore_errors=True)
            _lock_of(left).unlink(missing_ok=True)
            os.close(handle)
