"""What the embedded recorder made of a block of code, as a report and a dataset."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tracekit
from tracekit.capture.emit import routed_to
from tracekit.capture.kineto import ProcessTrace, Rows, rows_of_processes
from tracekit.capture.recorder import Recorder
from tracekit.capture.writing import describe_process, machine_tables
from tracekit.dataset.opening import Dataset
from tracekit.nsight import file as nsight_file
from tracekit.storage.local_copies import temp_dir


class Span(NamedTuple):
    """An interval of one thread in the file."""

    start: int
    end: int | None
    thread: int
    text: str


@contextmanager
def recorded(recorder: Recorder) -> Iterator[Recorder]:
    with routed_to(recorder.emitter):
        recorder.open()
        try:
            yield recorder
        finally:
            recorder.close()


def rows_of(recorder: Recorder) -> Rows:
    with temp_dir() as folder:
        return rows_of_processes([recorder.process_trace(folder / "trace.json")], ops=recorder.ops)


def written(recorder: Recorder, path: Path) -> Path:
    return file_of(rows_of(recorder), path)


def report_of(trace: Path, pid: int, path: Path, *, ops: bool = False) -> Path:
    """The report that the engine makes of a trace of torch.profiler."""
    return file_of(rows_of_processes([ProcessTrace(trace, (), pid)], ops=ops), path)


def file_of(rows: Rows, path: Path) -> Path:
    nsight_file.write(path, rows.tables() | machine_tables(rows, [describe_process([])]))
    return path


def parsed(recorder: Recorder, folder: Path) -> Dataset:
    return tracekit.parse(written(recorder, folder / "report.sqlite"), force=True)


def spans(path: Path) -> tuple[list[Span], list[Span]]:
    with closing(sqlite3.connect(path)) as db:
        texts: dict[int, Any] = dict(db.execute("SELECT id, value FROM StringIds"))
        ranges = db.execute('SELECT start, "end", globalTid, textId FROM NVTX_EVENTS').fetchall()
        ops = db.execute('SELECT start, "end", globalTid, nameId FROM TRACEKIT_CPU_OPS').fetchall()
    return tuple([Span(*row[:3], texts[row[3]]) for row in rows] for rows in (ranges, ops))


def texts_of(recorder: Recorder) -> list[str]:
    rows = rows_of(recorder)
    in_order = sorted(rows.ranges, key=lambda row: row["start"])
    return [rows.strings[row["textId"]] for row in in_order]
