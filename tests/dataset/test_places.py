"""Where a dataset may go: it replaces its like and an empty folder, when told, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal
from tests.trace_lines import report
from tracekit.tables import TABLES

FILES = {"manifest.json", *(f"{table.SPEC.name}.parquet" for table in TABLES)}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return report(tmp_path / "report.sqlite", LINES)


def full(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")


def extension(folder: Path) -> None:
    folder.mkdir()
    (folder / "manifest.json").write_text('{"manifest_version": 3}')


def link(path: Path, make: Callable[[Path], object]) -> None:
    make(path.with_name("theirs"))
    path.symlink_to("theirs")


THEIRS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("mine"),
    "a folder with a file": full,
    "a browser extension": extension,
    "a dangling link": lambda path: path.symlink_to("gone"),
    "a link to a full folder": lambda path: link(path, full),
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


def test_an_empty_folder_is_taken_when_told(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    refusal(command("parse", small, "-o", out), out)
    assert command("parse", small, "-o", out, "--force", "--quiet").code == 0
    assert {path.name for path in out.iterdir()} == FILES


@pytest.mark.parametrize("first", ["empty", "dataset"])
def test_a_link_to_a_dataset_can_be_written_through_again_and_again(first: str, small: Path, tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    place.mkdir()
    if first == "dataset":
        tracekit.parse(small, place, force=True)
    link.symlink_to(place)
    for _ in range(2):
        assert command("parse", small, "-o", link, "--force", "--quiet") == (0, "", "")
        assert {path.name for path in link.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"report.sqlite", "place", "link"}


@pytest.mark.parametrize("first", ["empty", "dataset"])
@pytest.mark.parametrize("out", [".", "../here/."])
def test_the_folder_that_one_is_in_is_written_like_any_other(
    out: str, first: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    if first == "dataset":
        tracekit.parse(small, here, force=True)
    monkeypatch.chdir(here)
    assert command("parse", small, "-o", out, "--force", "--quiet") == (0, "", "")
    assert {path.name for path in here.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"report.sqlite", "here"}


@pytest.mark.parametrize("length", [230, 300])
def test_a_name_too_long_for_the_disk_is_refused(length: int, small: Path, tmp_path: Path) -> None:
    out = tmp_path / ("x" * length)
    outcome = command("parse", small, "-o", out, "--quiet")
    if outcome.code:
        refusal(outcome, out)
    left = {path.name for path in tmp_path.iterdir()} - {"report.sqlite"}
    assert left == (set() if outcome.code else {out.name})
