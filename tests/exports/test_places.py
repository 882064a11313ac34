"""Where exports go: whole or not at all, over nothing that is not theirs, refused in one line."""

from __future__ import annotations

import builtins
import os
import resource
import signal
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, separately
from tests.trace_lines import report
from tracekit.cli import export
from tracekit.exports import FORMATS
from tracekit.exports.base import Target, exported_file

FILES = ["perfetto", "chrome", "stacks", "csv", "xlsx"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tracekit.parse(report(tmp_path / "report.sqlite", LINES), tmp_path / "run").folder


def refused(*args: object, code: int = 1) -> str:
    outcome = command("export", *args)
    assert (outcome.code, outcome.out) == (code, ""), outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("tracekit"), outcome.err
    return outcome.err


def test_the_command_offers_the_formats_there_are() -> None:
    assert tuple(one.NAME for one in FORMATS) == export._FORMATS


@pytest.mark.parametrize("kind", FILES)
def test_what_is_there_is_kept_unless_force_is_given(kind: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("export", run, "--format", kind, "-o", out).code == 0
    before = contents(tmp_path)
    line = refused(run, "--format", kind, "-o", out)
    assert f"{out}: already exists; replace it with --force or choose another place" in line
    assert contents(tmp_path) == before
    assert command("export", run, "--format", kind, "-o", out, "--force").code == 0
    assert set(contents(tmp_path)) == set(before)


def test_force_replaces_no_folder_of_something_else(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    before = contents(tmp_path)
    for kind in FILES:
        line = refused(run, "--format", kind, "-o", tmp_path / "mine", "--force")
        assert "already exists and is not a" in line
    assert contents(tmp_path) == before


@pytest.mark.parametrize("inside", ["", "kernels.parquet", "new.json"])
def test_the_dataset_itself_is_not_overwritten(inside: str, run: Path) -> None:
    before = contents(run)
    for kind in FILES:
        assert "lies in the dataset itself" in refused(run, "--format", kind, "-o", run / inside, "--force")
    assert contents(run) == before


def test_a_device_is_no_place_for_a_file(run: Path) -> None:
    assert "is not a file" in refused(run, "--format", "stacks", "-o", "/dev/null", "--force")


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_that_is_not_there_is_named(kind: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "no" / "out"
    line = refused(run, "--format", kind, "-o", out)
    assert f"{out}: cannot be written (No such file or directory)" in line


@pytest.mark.parametrize("kind", FILES)
def test_a_disk_that_fills_up_leaves_nothing_behind(kind: str, run: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))

    outcome = separately("export", run, "--format", kind, "-o", tmp_path / "out", before=limit)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1, outcome.err
    assert f"tracekit: {tmp_path}/out: cannot be written (" in outcome.err
    assert contents(tmp_path) == before


def test_a_second_ctrl_c_does_not_disturb_the_cleanup_after_the_first(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(path: Path, *, missing_ok: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        os.unlink(path)  # noqa: PTH108

    before = contents(tmp_path)
    monkeypatch.setattr(Path, "unlink", again)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        exported_file(tracekit.load(run), Target(str(tmp_path / "out"), force=False)) as partial,
    ):
        partial.write_text("half")
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", FILES)
def test_a_broken_dataset_leaves_nothing_behind(kind: str, run: Path, tmp_path: Path) -> None:
    (run / "kernels.parquet").write_bytes(b"broken")
    before = contents(tmp_path)
    line = refused(run, "--format", kind, "-o", tmp_path / "out")
    assert "its table kernels cannot be read" in line
    assert contents(tmp_path) == before


def test_a_workbook_without_openpyxl_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **more: object) -> object:
        if name == "openpyxl":
            raise ImportError(name)
        return real(name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    line = refused(run, "--format", "xlsx", "-o", tmp_path / "out")
    assert "pip install openpyxl" in line


@pytest.mark.parametrize(
    ("url", "message", "code"),
    [
        ("run.db", "not the URL of a database; expected one such as sqlite:///run.db", 2),
        ("nosuch://host/db", "SQLAlchemy supports no such database: nosuch", 2),
        ("mysql+pymysql://u:secret@h/db", "needs a driver", 1),
        ("sqlite:////no/such/folder/run.db", "cannot be written (unable to open database file)", 1),
    ],
)
def test_a_database_that_cannot_be_reached_is_refused_in_one_line_without_its_password(
    url: str, message: str, code: int, run: Path
) -> None:
    line = refused(run, "--format", "sql", "-o", url, code=code)
    assert message in line
    assert "secret" not in line


def test_a_file_that_is_no_database_is_refused_and_kept(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    before = contents(tmp_path)
    line = refused(run, "--format", "sql", "-o", f"sqlite:///{tmp_path}/notes.txt", "--force")
    assert "file is not a database" in line
    assert contents(tmp_path) == before


def test_a_database_that_was_made_for_nothing_is_removed(run: Path, tmp_path: Path) -> None:
    (run / "calls.parquet").write_bytes(b"broken")
    before = contents(tmp_path)
    refused(run, "--format", "sql", "-o", f"sqlite:///{tmp_path}/new.db")
    assert contents(tmp_path) == before


def test_tables_that_are_no_export_stand_beside_it(run: Path, tmp_path: Path) -> None:
    import sqlite3

    db = sqlite3.connect(tmp_path / "x.db")
    db.execute("CREATE TABLE mine (a)")
    db.close()
    url = f"sqlite:///{tmp_path}/x.db"
    assert command("export", run, "--format", "sql", "-o", url).code == 0
    assert "already has a table ranges" in refused(run, "--format", "sql", "-o", url)
    assert command("export", run, "--format", "sql", "-o", url, "--force").code == 0
    db = sqlite3.connect(tmp_path / "x.db")
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    db.close()
    assert {"mine", "kernels"} <= names


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x", "-o", "y"), "the following arguments are required: --format"),
        (("x", "--format", "pdf", "-o", "y"), "argument --format: invalid choice: 'pdf'"),
        (("x", "--format", "csv"), "the following arguments are required: -o/--out"),
    ],
)
def test_a_call_that_makes_no_sense_has_exit_code_2(args: tuple[str, ...], message: str) -> None:
    assert message in refused(*args, code=2)


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "--format", "csv", "-o", tmp_path / "out")
    assert "is not a dataset: it has no manifest.json; make one with tracekit parse" in line
