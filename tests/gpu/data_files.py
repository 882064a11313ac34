"""Small real reports for ``data/``: named after GPU and check, without what tells of the machine that made them."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tracekit.nsight.tables import RECORDER, STRINGS, SYSTEM, TABLES
from tracekit.selftest.judge import REPORT
from tracekit.selftest.running import PASSED, Outcome, Summary

FOLDER, README = "data", "README.md"
MOST_BYTES = 2_000_000
#: What a report may say of its system: versions, and nothing that names a person or a place.
_SYSTEM = ("CpuArchitecture", "CpuCores", "CudaVersion", "CudaDriverVersion", "NvDriverVersion", "TorchVersion")
#: Columns that hold the number of a string.
_STRING_COLUMNS = re.compile(r".*(name|text)(Id)?", re.IGNORECASE)
_NOT_MARKED = ">> 24 NOT IN (SELECT globalTid >> 24 FROM NVTX_EVENTS)"
#: What else tells of the machine in tables that tracekit reads: names of files and programs, and of whatever else ran,
#: because nsys lists all processes and threads; and metrics that it does not read. Each with the tables that it needs.
_TELLING = (
    (("META_DATA_EXPORT",), "DELETE FROM META_DATA_EXPORT WHERE value LIKE '%/%' OR name LIKE 'EXPORT_HOST%'"),
    (("EXPORT_META_DATA",), "DELETE FROM EXPORT_META_DATA WHERE value LIKE '%/%' OR name LIKE 'EXPORT_HOST%'"),
    (("DIAGNOSTIC_EVENT",), "DELETE FROM DIAGNOSTIC_EVENT WHERE text LIKE '%/%'"),
    (("PROCESSES",), "UPDATE PROCESSES SET name = 'python' WHERE name LIKE '%/%'"),
    (("PROCESSES", "NVTX_EVENTS"), f"DELETE FROM PROCESSES WHERE globalPid {_NOT_MARKED}"),  # noqa: S608 - a constant
    (
        ("GPU_METRICS", "TARGET_INFO_GPU_METRICS"),
        "DELETE FROM GPU_METRICS WHERE metricId NOT IN (SELECT metricId FROM TARGET_INFO_GPU_METRICS WHERE metricName"
        " LIKE 'SM% Active%' OR metricName LIKE 'Tensor Active%' OR metricName LIKE 'DRAM %')",
    ),
    (("ThreadNames", "NVTX_EVENTS"), f"DELETE FROM ThreadNames WHERE globalTid {_NOT_MARKED}"),  # noqa: S608 - a constant
    # Importing torch makes more calls of the OS runtime than all else.
    (("OSRT_API", "NVTX_EVENTS"), "DELETE FROM OSRT_API WHERE end < (SELECT MIN(start) FROM NVTX_EVENTS)"),
)


def keep(folder: Path, summary: Summary) -> None:
    """Copies reports of a self-test that are small enough, and says what made them."""
    (folder / FOLDER).mkdir()
    kept = [row for outcome in summary.outcomes if (row := _kept(folder, summary, outcome))]
    lines = ["| file | what it is | made by |", "|---|---|---|", *kept]
    (folder / FOLDER / README).write_text("\n".join(lines) + "\n", "utf-8")


def _kept(folder: Path, summary: Summary, outcome: Outcome) -> str | None:
    report = folder / outcome.name / REPORT
    if not report.exists():
        return None
    gpus = summary.machine.gpus
    words = re.findall(r"[a-z]+\d+\w*", gpus[0].lower()) if gpus else ["cpu"]
    copy = folder / FOLDER / f"{words[0] if words else 'gpu'}_{outcome.name}.sqlite"
    shutil.copyfile(report, copy)
    strip(copy)
    if copy.stat().st_size > MOST_BYTES:
        copy.unlink()
        return None
    # What a check says of itself holds only if it passed.
    held = f"of the check `{outcome.name}`, {outcome.verdict}: {outcome.why}"
    what = f"{outcome.about if outcome.verdict == PASSED else held} (real, on {_where(summary)})"
    return f"| `{copy.name}` | {what} | `python -m tests.gpu OUT --only {outcome.name}` |"


def _where(summary: Summary) -> str:
    machine = summary.machine
    nsys = f", nsys {machine.nsys}" if machine.engine == "nsys" else ""
    return f"{machine.gpus[0] if machine.gpus else 'a CPU'}, torch {machine.torch}{nsys}"


def strip(report: Path) -> None:
    with closing(sqlite3.connect(report)) as db, db:
        there = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in there:
            if name not in TABLES:
                db.execute(f'DROP TABLE "{name}"')
        if SYSTEM.name in there:
            marks = ", ".join("?" * len(_SYSTEM))
            db.execute(f"DELETE FROM {SYSTEM.name} WHERE name NOT IN ({marks})", _SYSTEM)  # noqa: S608 - a constant
        for needed, statement in _TELLING:
            if {*needed} <= {*there}:
                db.execute(statement)
        _drop_what_is_not_read(db, [name for name in there if name in TABLES])
    with closing(sqlite3.connect(report)) as db:
        db.execute("PRAGMA page_size=512")
        db.execute("VACUUM")


def cut(report: Path, first_ns: int, last_ns: int) -> None:
    """Leaves what began and ended in some nanoseconds of the session, and what has no end."""
    with closing(sqlite3.connect(report)) as db, db:
        for table in ("GPU_METRICS", *(name for name, known in TABLES.items() if {"start", "end"} <= {*known.columns})):
            columns = _columns(db, table)
            start, end = ("timestamp", "timestamp") if "timestamp" in columns else ("start", '"end"')
            if columns:
                outside = f"{start} < ? AND {end} IS NOT NULL OR {end} > ?"
                db.execute(f"DELETE FROM {table} WHERE {outside}", (first_ns, last_ns))  # noqa: S608 - constants


def _drop_what_is_not_read(db: sqlite3.Connection, tables: list[str]) -> None:
    """Columns such as the ids of GPUs, then strings that are left over."""
    for table in tables:
        for column in _columns(db, table):
            if column not in TABLES[table].columns:
                db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    if STRINGS.name not in tables:
        return
    db.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table in set(tables) - {STRINGS.name, RECORDER.name}:
        for column in _columns(db, table):
            if _STRING_COLUMNS.fullmatch(column):
                query = f'SELECT "{column}" FROM "{table}" WHERE typeof("{column}") = \'integer\''  # noqa: S608 - as above
                db.execute(f"INSERT OR IGNORE INTO used {query}")
    db.execute(f"DELETE FROM {STRINGS.name} WHERE id NOT IN (SELECT id FROM used)")  # noqa: S608 - a constant


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [column for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", [table])]
