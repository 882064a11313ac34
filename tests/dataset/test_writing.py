"""A dataset is written whole or not at all; it replaces its like and an empty folder, when told, and nothing else."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.command import LINES, arguments, begun, command, contents, refusal
from tests.readers.files import changed
from tests.trace_lines import report
from tests.waiting import PATIENCE_S, wait_until
from tracekit.tables import TABLES, kernels

FILES = {"manifest.json", *(f"{table.SPEC.name}.parquet" for table in TABLES)}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("large") / "report.sqlite", kernels=150_000)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return report(tmp_path / "report.sqlite", LINES)


def stopped(large: Path, out: Path, number: signal.Signals, when: str, tries: int = 5) -> tuple[int, str, str]:
    """Parses in a process of its own and sends it a signal while it reads or writes."""
    pattern = f".{out.name}.partial-*" + ("/kernels.parquet" if when == "writing" else "")
    process = begun(*arguments("parse", large, "-o", out))
    wait_until(lambda: any(out.parent.glob(pattern)), process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    if out.exists() and tries > 1:
        # On a busy machine the dataset may have been there before the signal came.
        shutil.rmtree(out)
        return stopped(large, out, number, when, tries - 1)
    return process.returncode, stdout, stderr


@pytest.mark.parametrize(("number", "when"), [(signal.SIGINT, "reading"), (signal.SIGTERM, "writing")])
def test_a_run_that_is_asked_to_stop_leaves_nothing(number, when, large, tmp_path) -> None:
    code, stdout, stderr = stopped(large, tmp_path / "out", number, when)
    assert code == 128 + number
    assert stdout == ""
    assert "Traceback" not in stderr
    assert stderr.count("\n") <= 1
    assert contents(tmp_path) == {}


def test_a_failed_parse_and_an_error_that_nobody_foresaw_leave_nothing(small, tmp_path, monkeypatch) -> None:
    def fails(rows: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "pieces", fails)
        with pytest.raises(ZeroDivisionError):
            tracekit.parse(small, tmp_path / "out")
    changed(small, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'")
    refusal(command("parse", small, "-o", tmp_path / "a" / "b" / "out"), small)
    assert list(tmp_path.iterdir()) == [small]


def test_the_old_dataset_comes_back_if_the_new_one_cannot_take_its_place(small, tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    tracekit.parse(small, out)
    before = contents(tmp_path)
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if ".partial-" in path.name:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr("tracekit.files._exchanged", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    line = refusal(command("parse", small, "-o", out, "--force"), out)
    assert "cannot be written (No space left on device); free some space" in line
    assert contents(tmp_path) == before


def test_a_dataset_appears_whole_in_one_moment(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = tmp_path / "out", []
    rename = Path.rename

    def watched(path: Path, target: Path) -> Path:
        seen.append((out.exists(), {file.name for file in path.iterdir()}, target))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    content, changed_ns = small.read_bytes(), small.stat().st_mtime_ns
    tracekit.parse(small, out)
    assert seen == [(False, FILES, out)]
    assert (small.read_bytes(), small.stat().st_mtime_ns) == (content, changed_ns), "a report stays what it was"
    assert {path.name for path in tmp_path.iterdir()} == {"report.sqlite", "out"}


def holding(folder: Path, name: str = "thesis.tex", content: str = "mine") -> None:
    folder.mkdir()
    (folder / name).write_text(content)


def link_to_full(path: Path) -> None:
    holding(path.with_name("theirs"))
    path.symlink_to("theirs")


THEIRS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("mine"),
    "a folder with a file": holding,
    "a browser extension": lambda path: holding(path, "manifest.json", '{"manifest_version": 3}'),
    "a dangling link": lambda path: path.symlink_to("gone"),
    "a link to a full folder": link_to_full,
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("what", THEIRS)
def test_what_is_no_dataset_is_never_replaced(what: str, force: bool, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    THEIRS[what](out)
    before = contents(tmp_path)
    line = refusal(command("parse", small, "-o", out, *(["--force"] if force else [])), out)
    assert "already exists and is not a dataset; choose another folder with -o" in line
    assert contents(tmp_path) == before
    assert out.is_symlink() == ("link" in what)


def test_the_report_itself_is_never_replaced(small: Path) -> None:
    before = small.read_bytes()
    refusal(command("parse", small, "-o", small, "--force"), small)
    refusal(command("parse", small, "-o", small / "below", "--force"), small / "below")
    assert small.read_bytes() == before


@pytest.mark.parametrize("first", ["empty", "dataset"])
@pytest.mark.parametrize("out", ["here", "link", ".", "../here/."])
def test_an_empty_folder_and_a_dataset_are_replaced_when_told_also_by_a_link_and_from_inside(
    out: str, first: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    if first == "dataset":
        tracekit.parse(small, here, force=True)
        (here / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    monkeypatch.chdir(here if "." in out else tmp_path)
    line = refusal(command("parse", small, "-o", out), Path(out))
    assert "already exists; replace it with --force or choose another folder with -o" in line
    assert contents(tmp_path) == before
    for _ in range(2):
        monkeypatch.chdir(here if "." in out else tmp_path)
        assert command("parse", small, "-o", out, "--force", "--quiet") == (0, "", "")
        assert {path.name for path in here.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"report.sqlite", "here", "link"}
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("length", [230, 300])
def test_a_name_too_long_for_the_disk_is_refused(length: int, small: Path, tmp_path: Path) -> None:
    out = tmp_path / ("x" * length)
    outcome = command("parse", small, "-o", out, "--quiet")
    if outcome.code:
        refusal(outcome, out)
    left = {path.name for path in tmp_path.iterdir()} - {"report.sqlite"}
    assert left == (set() if outcome.code else {out.name})
