"""What killed processes left behind goes; what others still work on stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES
from tests.trace_lines import report
from tracekit.files import hidden_next_to, this_machine
from tracekit.storage.local_copies import remove_stale, temp_dir

A_DAY_S = 90_000


@pytest.fixture(scope="module")
def ended() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def left(folder: Path, machine: str, process: int, age_s: int = 0) -> Path:
    place = folder / f"tracekit-{machine}-{process}-0123abcd"
    place.mkdir()
    (place / "table").write_text("rows")
    for path in (place / "table", place):
        os.utime(path, (path.stat().st_atime - age_s, path.stat().st_mtime - age_s))
    return place


def test_only_what_nobody_works_on_is_removed(ended: int, tmp_path: Path) -> None:
    at_work = {left(tmp_path, this_machine(), os.getpid(), A_DAY_S), left(tmp_path, "01234567", 2)}
    for name in ("tracekit-notes", f"other-{this_machine()}-{ended}-0123abcd", "tracekit-01234567-x-0123abcd"):
        at_work.add(tmp_path / name)
        (tmp_path / name).mkdir()
    gone = {left(tmp_path, this_machine(), ended), left(tmp_path, "01234567", 1, A_DAY_S)}
    assert {*tmp_path.iterdir()} == at_work | gone
    remove_stale(tmp_path, "tracekit-")
    assert {*tmp_path.iterdir()} == at_work


def test_a_temp_dir_is_removed_at_its_end_and_clears_up_before(ended: int, tmp_path: Path) -> None:
    left(tmp_path, this_machine(), ended)
    with temp_dir(parent=str(tmp_path)) as folder:
        assert [*tmp_path.iterdir()] == [folder]
        assert folder.stat().st_mode & 0o777 == 0o700
        with temp_dir(parent=str(tmp_path)) as other:
            assert folder.exists()
            assert other != folder
    assert [*tmp_path.iterdir()] == []


def test_a_parse_clears_up_beside_its_own_dataset_only(ended: int, tmp_path: Path) -> None:
    path = report(tmp_path / "rank0.sqlite", LINES)
    hidden = [str(hidden_next_to(tmp_path / name)) for name in ("run", "run2")]
    mine, other = (Path(name.replace(f"-{os.getpid()}-", f"-{ended}-")) for name in hidden)
    mine.mkdir()
    other.mkdir()
    tracekit.parse(path, tmp_path / "run")
    assert (mine.exists(), other.exists()) == (False, True)
