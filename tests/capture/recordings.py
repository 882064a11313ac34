"""What the embedded recorder made of a block of code, as a report and a dataset."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tracekit
from tracekit.capture.emit import routed_to
from tracekit.capture.kineto import ProcessTrace, Rows, rows_of_processes
from tracekit.capture.recorder import Recorder
from tracekit.capture.writing import describe_process, machine_tables
from tracekit.dataset.opening import Dataset
from tracekit.nsight import file as nsight_file
from tracekit.storage.local_copies import temp_dir


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


def texts_of(rows: Rows) -> list[str]:
    return [rows.strings[row["textId"]] for row in sorted(rows.ranges, key=lambda row: row["start"])]
