"""Where exports go: whole or not at all, over nothing that is not theirs, refused in one line."""

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately
from tests.trace_lines import report
from tracekit.exports import FORMATS
from tracekit.exports.base import Target, exported_file

#: What writes a file or folder, by what it writes.
WRITERS = {kind: ("export", "--format", kind) for kind in FORMATS if kind != "sql"} | {"page": ("html",)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tracekit.parse(report(tmp_path / "report.sqlite", LINES), tmp_path / "run").folder


def refused(*args: object, code: int = 1) -> str:
    outcome = command(*args)
    assert (outcome.code, outcome.out) == (code, ""), outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("tracekit"), outcome.err
    return outcome.err


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_there_is_kept_unless_force_is_given(kind: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command(*WRITERS[kind], run, "-o", out).code == 0
    before = contents(tmp_path)
    line = refused(*WRITERS[kind], run, "-o", out)
    assert f"{out}: already exists; replace it with --force or choose another place" in line
    assert contents(tmp_path) == before
    assert command(*WRITERS[kind], run, "-o", out, "--force").code == 0
    assert set(contents(tmp_path)) == set(before)


def test_force_replaces_no_folder_of_something_else(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    before = contents(tmp_path)
    for words in WRITERS.values():
        line = refused(*words, run, "-o", tmp_path / "mine", "--force")
        assert "already exists and is not a" in line
    assert contents(tmp_path) == before


@pytest.mark.parametrize("inside", ["", "kernels.parquet", "new.json"])
def test_the_dataset_itself_is_not_overwritten(inside: str, run: Path) -> None:
    before = contents(run)
    for words in WRITERS.values():
        assert "is inside the dataset itself" in refused(*words, run, "-o", run / inside, "--force")
    assert contents(run) == before


def test_a_place_that_cannot_be_written_is_named(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "no" / "out"
    assert "is not a file" in refused(*WRITERS["stacks"], run, "-o", "/dev/null", "--force")
    assert f"{out}: cannot be written (No such file or directory)" in refused(*WRITERS["csv"], run, "-o", out)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_disk_that_fills_up_leaves_nothing_behind(kind: str, run: Path, tmp_path: Path) -> None:
    before, out = contents(tmp_path), tmp_path / "out"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))

    line = refusal(separately(*WRITERS[kind], run, "-o", out, before=limit), out)
    assert f"{out}: cannot be written (" in line
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


def test_a_workbook_without_openpyxl_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert "pip install openpyxl" in refused(*WRITERS["xlsx"], run, "-o", tmp_path / "out")


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
    line = refused("export", run, "--format", "sql", "-o", url, code=code)
    assert message in line
    assert "secret" not in line


def test_a_file_that_is_no_database_is_refused_and_kept(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    before = contents(tmp_path)
    line = refused("export", run, "--format", "sql", "-o", f"sqlite:///{tmp_path}/notes.txt", "--force")
    assert "file is not a database" in line
    assert contents(tmp_path) == before


def test_a_database_that_was_made_for_nothing_is_removed(run: Path, tmp_path: Path) -> None:
    (run / "calls.parquet").write_bytes(b"broken")
    before = contents(tmp_path)
    refused("export", run, "--format", "sql", "-o", f"sqlite:///{tmp_path}/new.db")
    assert contents(tmp_path) == before
