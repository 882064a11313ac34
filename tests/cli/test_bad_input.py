"""What cannot be read, and full or locked disks: one line, exit code 1, nothing half-written."""

import gzip
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately, without_privileges
from tests.damage import dense, survey
from tests.readers.files import changed
from tests.trace_lines import report

EXPORT, AGAIN = "nsys export --type sqlite", "export the report again"


def holding(whole: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(whole)


def of_tables(*names: str) -> Callable[[Path], object]:
    return lambda path: changed(path, "".join(f"CREATE TABLE {name} (id);" for name in names))


def lacking(table: str, *columns: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        report(path, LINES)
        changed(path, "".join(f"ALTER TABLE {table} DROP COLUMN {column};" for column in columns))

    return make


def compressed_report(path: Path) -> None:
    path.write_bytes(gzip.compress(report(path, LINES).read_bytes()))


def folder_of_reports(path: Path) -> None:
    path.mkdir()
    for name in ("a", "b"):
        report(path / f"{name}.sqlite", LINES)


OF_A_FOLDER = "input file.sqlite/*.sqlite' -o 'input file.sqlite.tracekit'"
BAD_GZIP = b"\x1f\x8b\xff" + gzip.compress(b'{"traceEvents": []}')[3:]
VISUAL_PROFILER = b'<?xml version="1.0" encoding="UTF-8"?>\n<com.nvidia.viper.session/>'
NOT_REPORTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "empty": (holding(b""), "is empty", EXPORT),
    "text": (holding(b"kernel,time\ngemm,12\n"), "is a text file", EXPORT),
    "noise": (holding(bytes(range(256)) * 40), "has an unknown format", EXPORT),
    "gzip": (compressed_report, "is gzip-compressed", "decompress it first"),
    "gzip of a bad header": (
        holding(BAD_GZIP),
        "its gzip compression is cut off or damaged",
        "copy or record it again",
    ),
    "zip": (holding(b"PK\x03\x04" + bytes(60)), "is a zip archive", "decompress it first"),
    "JSON": (holding(b'{"traceEvents": []}'), "holds no events of torch.profiler", "export_chrome_trace"),
    "XML": (holding(b'<?xml version="1.0"?><report/>'), "is an XML file", EXPORT),
    "the Visual Profiler's": (
        holding(VISUAL_PROFILER),
        "such as NVIDIA's Visual Profiler writes",
        "that nvprof -o wrote",
    ),
    "what nvprof prints": (holding(b"==42== NVPROF is profiling process 42\n"), "nvprof prints", "nvprof -o"),
    "Parquet": (lambda path: pq.write_table(pa.table({"a": [1]}), path), "is a Parquet file", "tracekit.load"),
    "other SQLite": (of_tables("users", "orders"), "or nvprof: it has the tables orders, users", EXPORT),
    "DLProf": (of_tables("dictionary", "aggregations", "ops"), "is a DLProf database", EXPORT),
    "SQLite's first line alone": (holding(b"SQLite format 3\0"), "SQLite cannot read it", AGAIN),
    "half a report": (lambda path: path.write_bytes(report(path, LINES).read_bytes()[:20_000]), "read", AGAIN),
    "no threads": (lacking("NVTX_EVENTS", "globalTid", "eventType"), "EVENTS lacks eventType and globalTid", AGAIN),
    "strings without values": (lacking("StringIds", "value"), "its table StringIds lacks value", AGAIN),
    "a folder": (Path.mkdir, "is a folder", "expected a report file"),
    "a folder of reports": (folder_of_reports, "holds 2 reports: a.sqlite, b.sqlite", OF_A_FOLDER),
    "Arrow": (holding(b"\xff\xff\xff\xff" + bytes(60)), "is a stream of Arrow tables", "--type arrowdir"),
    "nothing": (lambda path: None, "does not exist", "check the path"),
    "a dangling link": (lambda path: path.symlink_to("gone"), "does not exist", "check the path"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a pipe or device", "expected a report file"),
}


@pytest.mark.parametrize("what", NOT_REPORTS)
def test_what_is_no_report_is_named_with_what_was_expected_and_what_to_do(what: str, tmp_path: Path) -> None:
    make, problem, remedy = NOT_REPORTS[what]
    path = tmp_path / "input file.sqlite"
    make(path)
    before = contents(tmp_path) if what != "a device" else None  # which has no end
    line = refusal(command("parse", path, "-o", tmp_path / "out"), path)
    assert problem in line
    assert remedy in line
    assert before is None or contents(tmp_path) == before
    with pytest.raises(tracekit.ReportError) as raised:
        tracekit.parse(path)
    assert raised.value.path == path


@pytest.mark.parametrize("name", ["two\nlines.sqlite", "perc%41ent?.sqlite#x", "-", "日本 ü.sqlite"])
def test_odd_names_of_reports_are_read_and_refused_as_well_as_plain_ones(name: str, tmp_path: Path) -> None:
    path = report(tmp_path / name, LINES)
    assert tracekit.parse(path).manifest["source"]["name"] == name
    path.write_text("text")
    outcome = command("parse", path, "--force")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    keeper = os.open(path, os.O_RDWR)  # opening it for reading does not wait, reading it would
    try:
        refusal(separately("parse", path, "-o", tmp_path / "out", before=lambda: signal.alarm(10)), path)
    finally:
        os.close(keeper)


def test_damaged_copies_of_a_small_report_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    whole = dense(report(tmp_path / "whole.sqlite", LINES))
    seen, bad = survey(whole, tmp_path / "copies", cuts=60, flips=200)
    assert not bad, "\n".join(bad)
    assert seen.total() == 260
    assert min(seen["read"], seen["refused"]) > 25


def test_a_path_misspelt_gets_the_name_of_its_neighbour(tmp_path: Path) -> None:
    path = report(tmp_path / "serving.sqlite", LINES)
    folder = tracekit.parse(path).folder
    for name, misspelt, meant in (("parse", "servin.sqlite", path), ("show", "serving.trackit", folder)):
        outcome = command(name, tmp_path / misspelt)
        assert outcome.code == 1
        assert outcome.err.endswith(f"; did you mean {meant}?\n")
    assert "did you mean" not in command("show", tmp_path / "training.tracekit").err


def test_the_folder_that_one_is_in_gets_a_dataset_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(tmp_path / "a.sqlite", LINES)
    monkeypatch.chdir(tmp_path)
    assert f"tracekit parse './*.sqlite' -o {tmp_path.name}.tracekit\n" in command("parse", ".").err


@pytest.mark.parametrize("name", ["parse", "show", "html"])
def test_what_is_no_report_or_has_another_name_is_not_suggested(name: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note")
    (tmp_path / "nope.link").symlink_to("gone")
    report(tmp_path / "rope ladder.sqlite", LINES)
    assert "did you mean" not in command(name, tmp_path / "nope.sqlite").err
    report(tmp_path / "nopes.sqlite", LINES)
    assert f"did you mean {tmp_path / 'nopes.sqlite'}?" in command(name, tmp_path / "nope.sqlite").err


def test_a_report_that_may_not_be_read_and_a_folder_that_may_not_be_written_are_named(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    path = report(locked / "report.sqlite", LINES)
    locked.chmod(0o555)
    for chosen, named in (((), locked / "report.tracekit"), (("-o", locked / "out"), locked / "out")):
        assert "Permission denied" in refusal(separately("parse", path, *chosen, before=without_privileges), named)
    path.chmod(0)
    line = refusal(separately("parse", path, "-o", tmp_path / "out", before=without_privileges), path)
    assert "cannot be opened (Permission denied); check the path and its permissions" in line
    assert [*tmp_path.rglob("*")] == [locked, path]


@pytest.mark.parametrize(("size", "there"), [(0, False), (5_000, False), (2_000, True)])
def test_a_disk_that_fills_up_leaves_nothing_behind_and_keeps_the_old_dataset(size, there, tmp_path) -> None:
    path = report(tmp_path / "report.sqlite", LINES)
    if there:
        tracekit.parse(path)
    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        outcome = command("parse", path, "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    line = refusal(outcome, tmp_path / "report.tracekit")
    assert "File too large" in line
    assert "free some space" in line
    assert contents(tmp_path) == before
