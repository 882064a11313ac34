"""Full and locked disks: one line, exit code 1, nothing half-written, the report untouched."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately, without_privileges
from tests.trace_lines import report


def test_a_report_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = report(tmp_path / "secret.sqlite", LINES)
    path.chmod(0)
    line = refusal(separately("parse", path, "-o", tmp_path / "out", before=without_privileges), path)
    assert "cannot be opened (Permission denied); check the path and its permissions" in line
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("out", ["locked/out", "default"])
def test_a_folder_that_may_not_be_written_is_named(out: str, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    path = report(locked / "report.sqlite", LINES)
    locked.chmod(0o555)
    chosen = () if out == "default" else ("-o", tmp_path / out)
    outcome = separately("parse", path, *chosen, before=without_privileges)
    line = refusal(outcome, locked / "report.tracekit" if out == "default" else tmp_path / out)
    assert "Permission denied" in line
    assert list(locked.iterdir()) == [path]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("size", "there"), [(0, False), (5_000, False), (2_000, True)])
def test_a_disk_that_fills_up_leaves_nothing_behind_and_keeps_the_old_dataset(
    size: int, there: bool, tmp_path: Path
) -> None:
    path = report(tmp_path / "report.sqlite", LINES)
    if there:
        tracekit.parse(path)
    before = contents(tmp_path)
    with files_no_larger_than(size):
        outcome = command("parse", path, "--force")
    line = refusal(outcome, tmp_path / "report.tracekit")
    assert "File too large" in line
    assert "free some space" in line
    assert contents(tmp_path) == before


def test_a_report_that_is_parsed_stays_byte_for_byte_what_it_was(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", LINES)
    before, stat = path.read_bytes(), path.stat()
    tracekit.parse(path, tmp_path / "out")
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert {entry.name for entry in tmp_path.iterdir()} == {"report.sqlite", "out"}
