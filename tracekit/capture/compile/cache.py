"""The compile cache: compiled pieces on disk, saved once, loaded by later processes, and always verified.

::

    <folder>/cache_key_factors.json   what everything in the folder depends on
    <folder>/pieces/<key>             an entry: one compiled piece, with the digests of its blobs
    <folder>/blobs/<sha256>           contents: artifacts of PyTorch, libraries that Inductor built
    <folder>/work/<process>           working folder of Inductor and Triton while a process lives

Blobs are named by their digests, and every entry contains its own, so a damaged file is found before any of it runs.
Pieces that cannot be used are compiled again and replaced. Entries contain only relative names, so a copied folder
works elsewhere. Digests detect damage, not attacks: artifacts are pickles, so a folder that others may write to is
refused.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._inductor import codecache
from torch._inductor.standalone_compile import CompiledArtifact

from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.disk import (
    Blobs,
    digest,
    discard,
    distrusted,
    private_folder,
    sweep_unfinished,
    write_whole,
)
from tracekit.capture.compile.factors import FACTORS_FILE, cache_folder, factors, traced_files
from tracekit.capture.compile.keys import piece_key
from tracekit.capture.compile.scratch import scratch_elsewhere, scratch_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.capture.compile.config import CompileConfig
    from tracekit.capture.compile.scratch import Scratch

__all__ = [
    "FACTORS_FILE",
    "ArtifactStore",
    "cache_folder",
    "factors",
    "model_store",
    "piece_key",
    "traced_files",
]

_LOG = logging.getLogger("tracekit.capture")
_FORMAT = "tracekit piece 1"


class ArtifactStore:
    """Compiled pieces in one folder, which several processes may use at once.

    If something is wrong with the folder, the store warns once and pieces are compiled again; results never suffer.

    Args:
        folder: The folder, created if needed; None keeps nothing on disk.
        enabled: Whether to use the folder.
    """

    def __init__(self, folder: Path | None, *, enabled: bool = True) -> None:
        self._folder = Path(folder) if folder is not None and enabled else None
        self._scratch: Scratch | None = None
        self._writable = True
        self._warned = False
        if self._folder is not None:
            self._open(self._folder)

    @property
    def folder(self) -> Path | None:
        """The folder; None if nothing is kept on disk."""
        return self._folder

    def _open(self, folder: Path) -> None:
        try:
            for place in (folder, *(folder / name for name in ("pieces", "blobs", "work"))):
                private_folder(place)
                if reason := distrusted(place):
                    self._folder = None
                    self._warn(f"{reason}, so it is not used", place)
                    return
            for name in ("pieces", "blobs"):
                sweep_unfinished(folder / name)
        except OSError as error:
            self._readonly(error)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """While the block runs, Inductor's and Triton's caches are in this process's part of the folder."""
        if self._folder is None:
            yield
            return
        with self._working_folder(self._folder).entered():
            yield

    def _working_folder(self, folder: Path) -> Scratch:
        if self._scratch is None or not self._scratch.folder.is_dir():
            try:
                self._scratch = scratch_in(folder / "work")
            except OSError as error:
                self._readonly(error)
                self._scratch = scratch_elsewhere()
            atexit.register(self._scratch.remove)
        return self._scratch

    def load(self, key: str) -> CompiledArtifact | None:
        """The compiled piece with this key; None if there is none that can be used."""
        if self._folder is None:
            return None
        path = self._entry(self._folder, key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"cannot be read ({error.strerror}), compiling again", path)
            return None
        try:
            artifact = self._loaded(self._folder, content)
        except Exception as error:  # noqa: BLE001 - PyTorch may raise anything for files of another version
            self._warn(f"cannot be used ({_reason(error)}), compiling again", path)
            discard(path)
            return None
        counters.cache_hits += 1
        counters.artifacts_loaded += 1
        return artifact

    def _loaded(self, folder: Path, content: bytes) -> CompiledArtifact:
        entry, blobs = _read_entry(content), Blobs(folder / "blobs")
        scratch = self._working_folder(folder)
        artifact = blobs.get(entry.artifact)
        for name, blob in entry.files.items():
            target = scratch.place(name)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(target, blobs.get(blob))
        copy = scratch.folder / f"{entry.artifact}.artifact"
        write_whole(copy, artifact)
        with self.environment(), _no_header_compiled():
            return CompiledArtifact.load(path=str(copy), format="binary")

    def save(self, key: str, artifact: CompiledArtifact) -> None:
        """Saves a compiled piece under a key and replaces an earlier one. Warns once if that fails."""
        if self._folder is None or not self._writable:
            return
        path = self._entry(self._folder, key)
        try:
            write_whole(path, self._saved(self._folder, artifact))
        except OSError as error:
            self._readonly(error)
        except Exception as error:  # noqa: BLE001 - pieces that PyTorch cannot save are just not kept
            self._warn(f"a compiled piece cannot be saved ({_reason(error)})", path)
        else:
            counters.artifacts_saved += 1

    def _saved(self, folder: Path, artifact: CompiledArtifact) -> bytes:
        blobs, scratch = Blobs(folder / "blobs"), self._working_folder(folder)
        copy = scratch.folder / "saved.artifact"
        artifact.save(path=str(copy), format="binary")
        files = {name: blobs.put(path.read_bytes()) for name, path in scratch.kept_files().items()}
        entry = _Entry(str(torch.__version__), blobs.put(copy.read_bytes()), files)
        copy.unlink()
        return entry.encoded()

    @staticmethod
    def _entry(folder: Path, key: str) -> Path:
        plain = re.fullmatch(r"[\w-]{1,128}", key, flags=re.ASCII)
        return folder / "pieces" / (key if plain else digest(key.encode()))

    def _readonly(self, error: OSError) -> None:
        self._writable = False
        reason = error.strerror or str(error)
        self._warn(f"cannot be written ({reason}), so compiled code is not kept", self._folder)

    def _warn(self, message: str, path: Path | None) -> None:
        if not self._warned:
            _LOG.warning("compile cache %s: %s", path, message)
        self._warned = True


def model_store(config: CompileConfig) -> ArtifactStore:
    """The store for the model that is being traced. Call it inside a backend, where the traced files are known."""
    if config.cache_dir is None or not config.use_cache:
        return ArtifactStore(None)
    return ArtifactStore(cache_folder(config.cache_dir, factors(config, traced_files())))


class _Entry(NamedTuple):
    """One compiled piece: PyTorch's version, and the digests of its artifact and its other files."""

    torch: str
    artifact: str
    files: dict[str, str]

    def encoded(self) -> bytes:
        text = json.dumps(self._asdict())
        return f"{_FORMAT} {digest(text.encode())}\n{text}".encode()


def _read_entry(content: bytes) -> _Entry:
    """Reads an entry.

    Raises:
        ValueError: If it is damaged, or from another version of tracekit or PyTorch.
    """
    head, _, text = content.partition(b"\n")
    version, _, checksum = head.decode("ascii", errors="replace").rpartition(" ")
    if version != _FORMAT:
        raise ValueError("not an entry of this version of tracekit")
    if checksum != digest(text):
        raise ValueError("damaged")
    entry = _Entry(**json.loads(text))
    if entry.torch != str(torch.__version__):
        raise ValueError(f"written by torch {entry.torch}")
    return entry


@contextlib.contextmanager
def _no_header_compiled() -> Iterator[None]:
    """Keeps Inductor from precompiling its header, which takes seconds and is not needed for loading."""
    if not hasattr(codecache, "_precompile_header"):
        yield
        return
    original = codecache._precompile_header
    codecache._precompile_header = lambda *_args, **_kwargs: None  # type: ignore[assignment]
    try:
        yield
    finally:
        codecache._precompile_header = original


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError) and (not text or text.startswith("torch_key ")):
        return "written by another build of PyTorch"  # PyTorch compares a digest of its sources
    return text[:200] or type(error).__name__
