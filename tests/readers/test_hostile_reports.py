"""SQLite files made to look like reports: what they hold is counted or refused, never trusted."""

from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately
from tests.readers.files import changed
from tests.trace_lines import report

ENDLESS = """
CREATE VIEW {table} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
  SELECT x AS start, x AS end, 59 AS eventType, x AS globalTid, x AS correlationId, x AS globalPid,
         x AS id, 'x' AS value, 'x' AS name, x AS pid FROM n;
"""


def hostile(tmp_path: Path, sql: str) -> Path:
    path = report(tmp_path / "report.sqlite", LINES)
    changed(path, sql.replace("KIND_", "CUPTI_ACTIVITY_KIND_"))
    return path


def loosely(table: str, change: str) -> str:
    copy = f"CREATE TABLE loose AS SELECT * FROM {table}; DROP TABLE {table};"  # noqa: S608
    return f"{copy} ALTER TABLE loose RENAME TO {table}; {change};"


REFUSED = {
    "a text as time": ("KIND_KERNEL", "start = 'soon'", "_KERNEL.start"),
    "a fraction as time": ("NVTX_EVENTS", "start = 1.5", "NVTX_EVENTS.start"),
    "a text as correlation": ("KIND_KERNEL", "correlationId = '#1'", "_KERNEL.correlationId"),
    "a text as string id": ("StringIds", "id = 'a'", "StringIds.id"),
    "a kernel without start": ("KIND_KERNEL", "start = NULL WHERE correlationId = 1", "_KERNEL"),
    "a range without start": ("NVTX_EVENTS", "start = NULL WHERE start = 10", "start"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_values_that_no_profiler_writes_are_refused_by_the_name_of_their_column(what: str, tmp_path: Path) -> None:
    table, change, named = REFUSED[what]
    path = hostile(tmp_path, loosely(table, f"UPDATE {table} SET {change}"))  # noqa: S608
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
    "rowids far apart": "UPDATE NVTX_EVENTS SET rowid = -9223372036854775808 WHERE start = 10;"
    "UPDATE NVTX_EVENTS SET rowid = 9223372036854775807 WHERE start = 0",
    "a column called rowid": "ALTER TABLE NVTX_EVENTS ADD COLUMN rowid TEXT; UPDATE NVTX_EVENTS SET rowid = 'a'",
    "strings without rowids": "CREATE TABLE s (id INTEGER PRIMARY KEY, value TEXT) WITHOUT ROWID;"
    "INSERT INTO s SELECT * FROM StringIds; DROP TABLE StringIds;"
    "ALTER TABLE s RENAME TO StringIds",
    "strings twice and of nothing": loosely(
        "StringIds",
        "INSERT INTO StringIds SELECT * FROM StringIds;"
        "INSERT INTO StringIds VALUES (NULL, NULL), (NULL, 'x'), (99, NULL)",
    ),
    "a write-ahead log that is gone": "PRAGMA journal_mode = WAL",
    "half a character": r"UPDATE NVTX_EVENTS SET text = '{''Module'': ''to\ud800p''}' WHERE start = 0",
}


@pytest.mark.parametrize("what", READ)
def test_oddities_beside_the_work_cost_no_kernel(what: str, tmp_path: Path) -> None:
    dataset = tracekit.parse(hostile(tmp_path, READ[what]))
    assert dataset.manifest["rows"]["kernels"] == 3
    kernels = [row for row in dataset.manifest["coverage"] if row["what"] == "kernels"]
    assert sum(row["count"] for row in kernels) == 3
    assert command("parse", tmp_path / "report.sqlite", "--force").code == 0, "no summary of it"


VIRTUAL = "CREATE VIRTUAL TABLE {table} USING fts5(start, 'end', eventType, globalTid, text);"
VIRTUAL += "INSERT INTO {table} VALUES (0, 9, 59, 281474993487873, 'evil')"


@pytest.mark.parametrize(
    ("table", "fake"),
    [*((table, ENDLESS) for table in ("NVTX_EVENTS", "KIND_KERNEL", "StringIds")), ("NVTX_EVENTS", VIRTUAL)],
)
def test_a_view_without_end_or_a_virtual_table_is_never_looked_into(table: str, fake: str, tmp_path: Path) -> None:
    path = hostile(tmp_path, f"DROP TABLE {table};" + fake.format(table=table))
    assert separately("parse", path, "--quiet") == (0, "", "")
    rows = tracekit.load(path.with_suffix(".tracekit")).manifest["rows"]
    assert rows["kernels"] == (1 if table == "KIND_KERNEL" else 3)
    assert (rows["ranges"] == 0) == (table == "NVTX_EVENTS")
