"""SQLite files made to look like reports: what they hold is counted or refused, never trusted."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately
from tests.trace_lines import report

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

#: As the SQL below calls Nsight's tables.
NAMES = {
    "KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL",
    "MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "RUNTIME": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX": "NVTX_EVENTS",
}
ENDLESS = """
CREATE VIEW {table} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
  SELECT x AS start, x AS end, 59 AS eventType, x AS globalTid, x AS correlationId, x AS globalPid,
         x AS id, 'x' AS value, 'x' AS name, x AS pid FROM n;
"""


def hostile(path: Path, sql: str) -> Path:
    """A small report after some SQL."""
    report(path, LINES)
    db = sqlite3.connect(path)
    db.executescript(re.sub(r"\b[A-Z]+\b", lambda found: NAMES.get(found[0], found[0]), sql))
    db.close()
    return path


def dataset_of(tmp_path: Path, sql: str) -> Dataset:
    return tracekit.parse(hostile(tmp_path / "report.sqlite", sql))


def loosely(table: str, change: str) -> str:
    """The change to a table that is without constraints, so that it takes any value."""
    copy = f"CREATE TABLE loose AS SELECT * FROM {table}; DROP TABLE {table};"  # noqa: S608
    return f"{copy} ALTER TABLE loose RENAME TO {table}; {change};"


def every(table: str, change: str) -> str:
    return loosely(table, f"UPDATE {table} SET {change}")  # noqa: S608


REFUSED = {
    "a text as time": (every("KERNEL", "start = 'soon'"), "_KERNEL.start"),
    "bytes as time": (every("RUNTIME", "end = x'00ff'"), "_RUNTIME.end"),
    "a fraction as time": (every("NVTX", "start = 1.5"), "NVTX_EVENTS.start"),
    "a text as thread": (every("NVTX", "globalTid = 'main'"), "NVTX_EVENTS.globalTid"),
    "a text as process": (every("KERNEL", "globalPid = 'python'"), "_KERNEL.globalPid"),
    "a text as correlation": (every("KERNEL", "correlationId = '#1'"), "_KERNEL.correlationId"),
    "a text as payload": (every("NVTX", "doubleValue = 'much'"), "NVTX_EVENTS.doubleValue"),
    "a text as string id": (
        "CREATE TABLE s (id, value); INSERT INTO s VALUES ('a', 'b'); DROP TABLE StringIds;"
        "ALTER TABLE s RENAME TO StringIds",
        "StringIds.id",
    ),
    "a kernel without start": (every("KERNEL", "start = NULL WHERE correlationId = 1"), "_KERNEL"),
    "a kernel without end": (every("KERNEL", "end = NULL WHERE correlationId = 1"), "_KERNEL"),
    "launches without start": (every("RUNTIME", "start = NULL"), "start"),
    "a range without start": (every("NVTX", "start = NULL WHERE start = 10"), "start"),
    "kernels at the end of time": (every("KERNEL", "end = 9223372036854775807"), "_KERNEL"),
    "ranges before all time": (every("NVTX", "start = -9223372036854775808"), "months or years apart"),
    "launches at the end of time": (every("RUNTIME", "end = 9223372036854775806"), "months or years apart"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_values_that_no_profiler_writes_are_refused_by_the_name_of_their_column(what: str, tmp_path: Path) -> None:
    sql, named = REFUSED[what]
    path = hostile(tmp_path / "report.sqlite", sql)
    before = contents(tmp_path)
    assert named in refusal(command("parse", path), path)
    assert contents(tmp_path) == before


LARGE = {
    "a grid of 2^40 blocks": every("KERNEL", "gridX = 1 << 40"),
    "a device of 2^63": every("KERNEL", "deviceId = 9223372036854775807"),
    "an event class of 2^63": every("RUNTIME", "eventClass = 9223372036854775807"),
}


@pytest.mark.parametrize("what", LARGE)
def test_numbers_too_large_for_their_column_end_in_a_dataset_or_in_one_line(what: str, tmp_path: Path) -> None:
    path = hostile(tmp_path / "report.sqlite", LARGE[what])
    outcome = command("parse", path, "--quiet")
    if outcome.code:
        assert "has values that are not int32" in refusal(outcome, path)
    else:
        assert tracekit.load(tmp_path / "report.tracekit").manifest["rows"]["kernels"] == 3


READ = {
    "a process that is a text": "UPDATE PROCESSES SET pid = 'x';INSERT INTO PROCESSES VALUES ('a', 'b', 'c')",
    "a process name that is a number": "DROP TABLE PROCESSES; CREATE TABLE PROCESSES (pid, name);"
    "INSERT INTO PROCESSES VALUES (1, 5)",
    "a process name of bytes": "INSERT INTO PROCESSES VALUES (1, 1, x'ff')",
    "a GPU named by bytes": "CREATE TABLE TARGET_INFO_GPU (id, name);INSERT INTO TARGET_INFO_GPU VALUES (0, x'ff')",
    "GPUs numbered by texts": "CREATE TABLE TARGET_INFO_GPU (id, name);"
    "INSERT INTO TARGET_INFO_GPU VALUES (0, 'A'), ('x', 'B'), (NULL, 'C')",
    "a version of bytes": "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', x'ff')",
    "a version that is a number": "DROP TABLE META_DATA_EXPORT;"
    "CREATE TABLE META_DATA_EXPORT (name, value);"
    "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', 7)",
    "properties of bytes": loosely("META_DATA_EXPORT", "INSERT INTO META_DATA_EXPORT VALUES (x'ff', 1), (NULL, 2)"),
    "a start that is a text": "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs);"
    "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ('noon')",
    "the last rowid there is": "UPDATE NVTX SET rowid = 9223372036854775807 WHERE start = 10",
    "rowids far apart": "UPDATE NVTX SET rowid = -9223372036854775808 WHERE start = 10;"
    "UPDATE NVTX SET rowid = 9223372036854775807 WHERE start = 0",
    "a column called rowid": "ALTER TABLE NVTX ADD COLUMN rowid TEXT; UPDATE NVTX SET rowid = 'a'",
    "strings without rowids": "CREATE TABLE s (id INTEGER PRIMARY KEY, value TEXT) WITHOUT ROWID;"
    "INSERT INTO s SELECT * FROM StringIds; DROP TABLE StringIds;"
    "ALTER TABLE s RENAME TO StringIds",
    "strings twice and of nothing": loosely(
        "StringIds",
        "INSERT INTO StringIds SELECT * FROM StringIds;"
        "INSERT INTO StringIds VALUES (NULL, NULL), (NULL, 'x'), (99, NULL)",
    ),
    "a write-ahead log that is gone": "PRAGMA journal_mode = WAL",
    "threads with every bit set": "UPDATE RUNTIME SET globalTid = -1",
    "domains without end": "UPDATE NVTX SET domainId = 9223372036854775807",
    "an infinite payload": "UPDATE NVTX SET doubleValue = 9e999",
    "half a character": r"UPDATE NVTX SET text = '{''Module'': ''to\ud800p''}' WHERE start = 0",
    "kernels nobody names": "UPDATE KERNEL SET shortName = 12345, demangledName = -1",
}


@pytest.mark.parametrize("what", READ)
def test_oddities_beside_the_work_cost_no_kernel(what: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, READ[what])
    assert dataset.manifest["rows"]["kernels"] == 3
    kernels = [row for row in dataset.manifest["coverage"] if row["what"] == "kernels"]
    assert sum(row["count"] for row in kernels) == 3
    assert command("parse", tmp_path / "report.sqlite", "--force").code == 0, "no summary of it"


@pytest.mark.parametrize("table", ["NVTX", "KERNEL", "RUNTIME", "PROCESSES", "StringIds"])
def test_a_view_without_end_is_never_looked_into(table: str, tmp_path: Path) -> None:
    sql = f"DROP TABLE {table};" + ENDLESS.format(table=table)
    path = hostile(tmp_path / "report.sqlite", sql)
    assert separately("parse", path, "--quiet") == (0, "", "")
    rows = tracekit.load(path.with_suffix(".tracekit")).manifest["rows"]
    assert rows["kernels"] == (1 if table == "KERNEL" else 3)


@pytest.mark.parametrize("column", ["extra", "name"])
def test_a_column_that_cannot_be_computed_is_left_alone(column: str, tmp_path: Path) -> None:
    sql = "DROP TABLE PROCESSES; CREATE TABLE PROCESSES (globalPid, pid);"
    sql += "INSERT INTO PROCESSES VALUES (-9223372036854775808, 1);"
    sql += f"ALTER TABLE PROCESSES ADD COLUMN {column} AS (abs(globalPid))"
    assert dataset_of(tmp_path, sql).manifest["rows"]["kernels"] == 3


def test_a_kernel_that_ends_before_it_starts_is_counted_and_not_lost(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "UPDATE KERNEL SET end = 1 WHERE correlationId = 2")
    kernels = dataset.table("kernels", ["start_ns", "end_ns", "dur_ns", "module"]).to_pylist()
    assert {"start_ns": 700, "end_ns": 700, "dur_ns": 0, "module": "top"} in kernels
    assert len(kernels) == 3
    [loss] = [row for row in dataset.manifest["coverage"] if row["cause"] == "ends_before_start"]
    assert (loss["what"].rpartition("_")[2], loss["count"]) == ("kernels: losses", 1)
    assert not loss["known"]


def test_a_report_without_any_event_has_no_rows_and_says_what_it_lacks(tmp_path: Path) -> None:
    sql = "DELETE FROM NVTX; DELETE FROM RUNTIME; DELETE FROM KERNEL; DELETE FROM MEMCPY"
    dataset = dataset_of(tmp_path, sql)
    assert set(dataset.manifest["rows"].values()) == {0}
    assert [lack["what"] for lack in dataset.manifest["lacks"]] == ["NVTX ranges", "GPU work"]
    assert "no GPU work recorded" in command("parse", tmp_path / "report.sqlite", "--force").out


def test_work_whose_process_and_correlation_are_missing_has_no_module(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "UPDATE KERNEL SET globalPid = NULL, correlationId = NULL")
    assert dataset.table("kernels", ["module"]).column("module").null_count == 3
