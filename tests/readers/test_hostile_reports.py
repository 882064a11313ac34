"""SQLite files made to look like reports: what they hold is counted or refused, never trusted."""

import re
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately
from tests.sqlite import writing
from tests.trace_lines import report
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
    report(path, LINES)
    with writing(path) as db:
        db.executescript(re.sub(r"\b[A-Z]+\b", lambda found: NAMES.get(found[0], found[0]), sql))
    return path


def dataset_of(tmp_path: Path, sql: str) -> Dataset:
    return tracekit.parse(hostile(tmp_path / "report.sqlite", sql))


def loosely(table: str, change: str) -> str:
    copy = f"CREATE TABLE loose AS SELECT * FROM {table}; DROP TABLE {table};"  # noqa: S608
    return f"{copy} ALTER TABLE loose RENAME TO {table}; {change};"


def every(table: str, change: str) -> str:
    return loosely(table, f"UPDATE {table} SET {change}")  # noqa: S608


REFUSED = {
    "a text as time": (every("KERNEL", "start = 'soon'"), "_KERNEL.start"),
    "a fraction as time": (every("NVTX", "start = 1.5"), "NVTX_EVENTS.start"),
    "a text as correlation": (every("KERNEL", "correlationId = '#1'"), "_KERNEL.correlationId"),
    "a text as string id": (
        "CREATE TABLE s (id, value); INSERT INTO s VALUES ('a', 'b'); DROP TABLE StringIds;"
        "ALTER TABLE s RENAME TO StringIds",
        "StringIds.id",
    ),
    "a kernel without start": (every("KERNEL", "start = NULL WHERE correlationId = 1"), "_KERNEL"),
    "a range without start": (every("NVTX", "start = NULL WHERE start = 10"), "start"),
    "kernels at the end of time": (every("KERNEL", "end = 9223372036854775807"), "_KERNEL"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_values_that_no_profiler_writes_are_refused_by_the_name_of_their_column(what: str, tmp_path: Path) -> None:
    sql, named = REFUSED[what]
    path = hostile(tmp_path / "report.sqlite", sql)
    before = contents(tmp_path)
    assert named in refusal(command("parse", path), path)
    assert contents(tmp_path) == before


READ = {
    "a process that is a text": "UPDATE PROCESSES SET pid = 'x';INSERT INTO PROCESSES VALUES ('a', 'b', 'c')",
    "GPUs numbered by texts": "CREATE TABLE TARGET_INFO_GPU (id, name);"
    "INSERT INTO TARGET_INFO_GPU VALUES (0, 'A'), ('x', 'B'), (NULL, 'C')",
    "properties of bytes": loosely("META_DATA_EXPORT", "INSERT INTO META_DATA_EXPORT VALUES (x'ff', 1), (NULL, 2)"),
    "a start that is a text": "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs);"
    "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ('noon')",
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
    "half a character": r"UPDATE NVTX SET text = '{''Module'': ''to\ud800p''}' WHERE start = 0",
}


@pytest.mark.parametrize("what", READ)
def test_oddities_beside_the_work_cost_no_kernel(what: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, READ[what])
    assert dataset.manifest["rows"]["kernels"] == 3
    kernels = [row for row in dataset.manifest["coverage"] if row["what"] == "kernels"]
    assert sum(row["count"] for row in kernels) == 3
    assert command("parse", tmp_path / "report.sqlite", "--force").code == 0, "no summary of it"


@pytest.mark.parametrize("table", ["NVTX", "KERNEL", "StringIds"])
def test_a_view_without_end_is_never_looked_into(table: str, tmp_path: Path) -> None:
    sql = f"DROP TABLE {table};" + ENDLESS.format(table=table)
    path = hostile(tmp_path / "report.sqlite", sql)
    assert separately("parse", path, "--quiet") == (0, "", "")
    rows = tracekit.load(path.with_suffix(".tracekit")).manifest["rows"]
    assert rows["kernels"] == (1 if table == "KERNEL" else 3)


def test_a_kernel_that_ends_before_it_starts_is_counted_and_not_lost(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "UPDATE KERNEL SET end = 1 WHERE correlationId = 2")
    kernels = dataset.table("kernels", ["start_ns", "end_ns", "dur_ns", "module"]).to_pylist()
    assert {"start_ns": 700, "end_ns": 700, "dur_ns": 0, "module": "top"} in kernels
    assert len(kernels) == 3
    [loss] = [row for row in dataset.manifest["coverage"] if row["cause"] == "row_damaged"]
    assert (loss["what"].rpartition("_")[2], loss["count"]) == ("kernels: losses", 1)
    assert not loss["known"]
