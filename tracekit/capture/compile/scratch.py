"""Working folders of Inductor and Triton, and which of their files to keep.

Every process has its own, so it never sees the unfinished files of another process.
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

#: Inductor's and Triton's environment variables, and the subfolders that they point to.
_PLACES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
#: Folders whose files are contained in the artifact, or are useful for one process only.
_NOT_KEPT = {"fxgraph", "aotautograd", "locks", "triton", "dynamo", "precompiled_headers"}
_NOT_KEPT_SUFFIXES = {".lock", ".tmp", ".cpp", ".o", ".txt"}
#: Free space that compiling needs.
_FREE_BYTES = 64 << 20
#: Marks the source files with which Inductor probes the processor, once per process.
_PROBE = b"_chk_kernel"
_PROBE_BYTES = 4096
#: Inductor's folders in this process so far.
_USED: list[Path] = []
_ENVIRONMENT = threading.RLock()


class Scratch:
    """The working folder of one process."""

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        self.folder = folder
        self._lock = lock
        for name in _PLACES.values():
            (folder / name).mkdir()
        _copy_probes(folder / "inductor")
        _USED.append(folder / "inductor")

    def remove(self) -> None:
        """Removes the folder. Libraries that were loaded from it stay loaded."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            _lock_of(self.folder).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """While the block runs, Inductor and Triton work in this folder; one thread and one folder at a time."""
        with _ENVIRONMENT:
            if os.environ.get("TORCHINDUCTOR_CACHE_DIR") == str(self.folder / "inductor"):
                yield
                return
            before = {name: os.environ.get(name) for name in _PLACES}
            os.environ.update({name: str(self.folder / sub) for name, sub in _PLACES.items()})
            clear_caches()  # files that Inductor made elsewhere must be made here too, to be kept
            try:
                yield
            finally:
                clear_caches()
                for name, value in before.items():
                    os.environ.pop(name, None)
                    os.environ.update({name: value} if value is not None else {})

    def kept_files(self) -> dict[str, Path]:
        """The files that a later process needs to run the compiled code, by their path in the folder."""
        top = self.folder / "inductor"
        return {
            path.relative_to(top).as_posix(): path
            for path in sorted(top.rglob("*"))
            if path.is_file() and _is_kept(path.relative_to(top))
        }

    def place(self, name: str) -> Path:
        """The path of a kept file.

        Raises:
            ValueError: If the name leads out of the folder.
        """
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\\" in name:
            raise ValueError(f"{name!r} is not a relative path inside the folder")
        return self.folder / "inductor" / Path(*parts)


def _is_kept(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and path.parts[0] not in _NOT_KEPT and path.suffix not in _NOT_KEPT_SUFFIXES


def _copy_probes(folder: Path) -> None:
    """Copies the libraries with which Inductor probed instruction sets: it probes only once per process."""
    if not cpu_vec_isa.valid_vec_isa_list.cache_info().currsize:
        return
    for library in _probes():
        target = folder / library.parent.name
        target.mkdir(exist_ok=True)
        shutil.copy2(library, target / library.name)


def _probes() -> list[Path]:
    """The libraries with which Inductor probed the processor in this process, in any folder."""
    folders = [Path(default_cache_dir()), *_USED]
    sources = [source for folder in folders for source in folder.glob("??/*.cpp")]
    small = [source for source in sources if source.stat().st_size < _PROBE_BYTES]
    libraries = [source.with_suffix(".so") for source in small if _PROBE in source.read_bytes()]
    return [library for library in libraries if library.is_file()]


def scratch_in(folder: Path) -> Scratch:
    """Creates a working folder inside a folder, and removes those of killed processes.

    Raises:
        OSError: If it cannot be created, or the disk is nearly full.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if shutil.disk_usage(folder).free < _FREE_BYTES:
        raise OSError(f"less than {_FREE_BYTES >> 20} MiB free")
    _sweep(folder)
    name = folder / f"{os.getpid()}-{os.urandom(4).hex()}"
    lock = _claimed(_lock_of(name))
    name.mkdir(mode=0o700)
    return Scratch(name, lock)


def scratch_elsewhere() -> Scratch:
    """Creates a working folder in the system's folder for temporary files."""
    return Scratch(Path(tempfile.mkdtemp(prefix="tracekit-compile-")))


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _claimed(path: Path) -> int | None:
    """An open file, locked until this process ends; None if another process holds the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _sweep(folder: Path) -> None:
    """Removes working folders whose process has ended."""
    if sys.platform == "win32":
        return
    for left in folder.iterdir():
        if left.is_dir() and (handle := _claimed(_lock_of(left))) is not None:
            shutil.rmtree(left, ignore_errors=True)
            _lock_of(left).unlink(missing_ok=True)
            os.close(handle)
