"""Whatever is wrong with a cache folder costs a compilation and one warning, never a result."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.capture.compile.pieces import compiled, matmul, matmul_is_right, start
from tracekit.capture.compile import ArtifactStore, cache as cache_module, disk, scratch
from tracekit.capture.compile.disk import digest, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
KEY = "0" * 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One compiled piece, kept in a folder."""
    graph, inputs = matmul()
    store = ArtifactStore(tmp_path_factory.mktemp("made") / "cache")
    with store.environment():
        artifact = compiled(graph, inputs)
        store.save(KEY, artifact)
    return SimpleNamespace(folder=store.folder, artifact=artifact, inputs=inputs)


@pytest.fixture
def folder(made: SimpleNamespace, tmp_path: Path) -> Path:
    """A copy of that folder."""
    for name in ("pieces", "blobs"):
        (tmp_path / "cache" / name).mkdir(parents=True, mode=0o700)
        for path in (made.folder / name).iterdir():
            (tmp_path / "cache" / name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "cache").chmod(0o700)
    return tmp_path / "cache"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was told to people since it was last asked."""

    def texts() -> list[str]:
        ours = [r for r in caplog.records if r.name.startswith("tracekit")]
        found = [r.message for r in ours if r.levelno >= logging.WARNING]
        caplog.clear()
        return found

    return texts


def usable(made: SimpleNamespace, folder: Path) -> bool:
    """Whether a new start finds a piece in the folder that gives right results."""
    found = ArtifactStore(folder).load(KEY)
    return found is not None and matmul_is_right(found, made.inputs, 5)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda _content: b"",
    "flipped": flipped,
    "longer": lambda content: content + b"\0",
    "other": lambda _content: b"PK\x03\x04 something else",
    "text": lambda _content: "ein\N{SNOWMAN}".encode(),
}


def test_the_copy_is_usable(made, folder: Path, warned) -> None:
    assert usable(made, folder)
    assert not warned()


@pytest.mark.parametrize("where", ["pieces", "blobs"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(made, folder: Path, warned, where: str, damage: str) -> None:
    for path in (folder / where).iterdir():
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    store = ArtifactStore(folder)
    assert store.load(KEY) is None
    assert store.load(KEY) is None
    (text,) = warned()
    assert f"{KEY}: cannot be used (" in text
    assert text.endswith("compiling again")
    with store.environment():
        store.save(KEY, made.artifact)
    assert usable(made, folder)
    assert not warned()


@pytest.mark.parametrize("missing", ["pieces", "blobs"])
def test_a_missing_file_is_written_anew(made, folder: Path, warned, missing: str) -> None:
    for path in (folder / missing).iterdir():
        path.unlink()
    store = ArtifactStore(folder)
    assert store.load(KEY) is None
    assert len(warned()) == (missing == "blobs")
    store.save(KEY, made.artifact)
    assert usable(made, folder)


@pytest.mark.parametrize("name", ["pieces", "blobs"])
def test_a_folder_in_the_place_of_a_file_is_no_error(made, folder: Path, warned, name) -> None:
    for path in list((folder / name).iterdir()):
        path.unlink()
        path.mkdir()
    store = ArtifactStore(folder)
    assert store.load(KEY) is None
    store.save(KEY, made.artifact)
    assert len(warned()) == 1


def entry(folder: Path, **changes: object) -> None:
    """Changes an entry and makes its digest right."""
    path = folder / "pieces" / KEY
    said = json.loads(path.read_bytes().partition(b"\n")[2]) | changes
    text = json.dumps({name: value for name, value in said.items() if value is not None})
    path.write_text(f"tracekit piece 1 {digest(text.encode())}\n{text}")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"torch": "1.0"}, r"written by torch 1\.0"),
        ({"files": None}, "files"),
        ({"more": 1}, "more"),
        ({"artifact": 3}, "cannot be used"),
        ({"artifact": "../../../etc/passwd"}, "not a digest"),
        ({"files": {"../../../x": "0"}}, "is not a relative path inside the folder"),
        ({"files": {"/tmp/x": "0"}}, "is not a relative path inside the folder"),
        ({"files": ["a"]}, "cannot be used"),
    ],
)
def test_an_entry_that_says_something_else_is_not_followed(made, folder: Path, warned, changes, why: str) -> None:
    entry(folder, **changes)
    assert not usable(made, folder)
    (text,) = warned()
    assert pytest.raises(AssertionError, match=why).matches(AssertionError(text))
    assert not (folder / "pieces" / KEY).exists()


def test_an_artifact_of_another_build_of_torch_is_compiled_anew(made, folder: Path, warned, monkeypatch) -> None:
    monkeypatch.setattr(torch._inductor.codecache, "torch_key", lambda: b"another")
    assert not usable(made, folder)
    assert "cannot be used (written by another build of PyTorch), compiling again" in warned()[0]


def test_nothing_of_a_damaged_artifact_is_run(made, folder: Path, tmp_path: Path) -> None:
    said = json.loads((folder / "pieces" / KEY).read_bytes().partition(b"\n")[2])
    ran = tmp_path / "ran"
    evil = f"cposix\nsystem\n(S'touch {ran}'\ntR.".encode()
    (folder / "blobs" / said["artifact"]).write_bytes(evil)
    assert not usable(made, folder)
    assert not ran.exists()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(made, folder, warned, mode: int) -> None:
    folder.chmod(mode)
    store = ArtifactStore(folder)
    assert store.load(KEY) is None
    store.save("other", made.artifact)
    assert not (folder / "pieces" / "other").exists()
    (text,) = warned()
    assert "others may write to it (chmod go-w makes it usable)" in text


@pytest.mark.parametrize("inner", ["pieces", "blobs", "work"])
def test_so_is_a_folder_in_which_others_may_write_to_a_folder(made, folder, warned, inner: str) -> None:
    (folder / inner).mkdir(exist_ok=True)
    (folder / inner).chmod(0o777)
    assert not usable(made, folder)
    (text,) = warned()
    assert f"{inner}: others may write to it" in text


def test_a_folder_of_another_user_is_refused(made, folder, warned, monkeypatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not usable(made, folder)
    assert "it belongs to another user" in warned()[0]


def failing(monkeypatch: pytest.MonkeyPatch, folder: Path, code: int) -> None:
    """Whatever is written in a folder fails, as on a full disk or one that is mounted read-only."""

    def fails(path: Path) -> None:
        if path.is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(path))

    def written(path: Path, content: bytes) -> None:
        fails(path)
        write_whole(path, content)

    def working(place: Path) -> None:
        fails(place)

    for module in (cache_module, disk):
        monkeypatch.setattr(module, "write_whole", written)
    monkeypatch.setattr(cache_module, "scratch_in", working)


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_a_folder_that_cannot_be_written_is_read(made, folder, warned, monkeypatch, code) -> None:
    failing(monkeypatch, folder, code)
    store = ArtifactStore(folder)
    with store.environment():
        assert matmul_is_right(store.load(KEY), made.inputs, 3)
        assert not os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(folder))
        store.save("other", made.artifact)
        store.save("another", made.artifact)
    (text,) = warned()
    assert f"cannot be written ({os.strerror(code)}), so compiled code is not kept" in text
    assert [path.name for path in (folder / "pieces").iterdir()] == [KEY]


def test_a_disk_that_fills_up_costs_one_warning(made, folder, warned, monkeypatch) -> None:
    store = ArtifactStore(folder)
    with store.environment():
        failing(monkeypatch, folder / "pieces", errno.ENOSPC)
        store.save("other", made.artifact)
        store.save("another", made.artifact)
    assert len(warned()) == 1
    monkeypatch.undo()
    assert usable(made, folder)


def test_without_room_it_is_compiled_elsewhere(folder: Path, warned, monkeypatch) -> None:
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with ArtifactStore(folder).environment():
        assert not os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(folder))
    assert "less than 64 MiB free" in warned()[0]


def test_a_file_in_the_place_of_the_folder_is_no_error(made, tmp_path: Path, warned) -> None:
    (tmp_path / "cache").write_text("")
    store = ArtifactStore(tmp_path / "cache")
    with store.environment():
        assert store.load(KEY) is None
        store.save(KEY, made.artifact)
    assert len(warned()) == 1
    assert (tmp_path / "cache").read_text() == ""


def test_an_artifact_that_cannot_be_saved_is_told_once(folder: Path, warned) -> None:
    class Unsaveable:
        def save(self, *, path: str, format: str) -> None:  # noqa: A002
            raise AssertionError("nothing to save")

    store = ArtifactStore(folder)
    store.save("other", Unsaveable())
    store.save("another", Unsaveable())
    (text,) = warned()
    assert "a compiled piece cannot be saved (nothing to save)" in text


SAVING = """
    import os, signal, sys
    from pathlib import Path
    from tests.capture.compile.pieces import compiled, matmul, matmul_is_right
    from tracekit.capture.compile import ArtifactStore

    store = ArtifactStore(Path(sys.argv[1]))
    graph, inputs = matmul()
    if len(sys.argv) > 2:
        replaced, moves = Path.replace, []

        def killed(path, target):
            moves.append(path)
            if len(moves) == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return replaced(path, target)

        Path.replace = killed
    with store.environment():
        artifact = store.load("0" * 64) or compiled(graph, inputs)
        store.save("0" * 64, artifact)
    assert matmul_is_right(artifact, inputs, 3)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_after_a_kill_in_the_middle_of_a_save_the_next_start_is_clean(made, tmp_path: Path, warned) -> None:
    killed = start(SAVING, tmp_path / "cache", 2)
    assert killed.wait(timeout=120) == -signal.SIGKILL
    killed.communicate()
    assert list((tmp_path / "cache" / "work").iterdir())
    (unfinished,) = (tmp_path / "cache").glob("*/.*.partial-*")
    os.utime(unfinished, (0, 0))
    store = ArtifactStore(tmp_path / "cache")
    assert store.load(KEY) is None
    assert not unfinished.exists()
    with store.environment():
        store.save(KEY, made.artifact)
        assert len([p for p in (tmp_path / "cache" / "work").iterdir() if p.is_dir()]) == 1
    assert usable(made, tmp_path / "cache")
    assert not warned()


def test_processes_that_save_at_once_leave_one_usable_piece(made, tmp_path, warned) -> None:
    started = [start(SAVING, tmp_path / "cache") for _ in range(2)]
    for process in started:
        _, said = process.communicate(timeout=240)
        assert (process.returncode, said) == (0, "")
    assert usable(made, tmp_path / "cache")
    assert not warned()
    kept = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [name for name in kept if name.startswith(".")]
