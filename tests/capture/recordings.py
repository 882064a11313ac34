"""What the embedded recorder made of a block of code, as a report and a dataset."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import tracekit
from tracekit.capture import machine
from tracekit.capture.emit import routed_to
from tracekit.nsight import file as nsight_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.capture.recorder import Recorder
    from tracekit.dataset.opening import Dataset


class Span(NamedTuple):
    """An interval of one thread in the file."""

    start: int
    end: int | None
    thread: int
    text: str


@contextmanager
def recorded(recorder: Recorder) -> Iterator[Recorder]:
    """Records the block; markers without an emitter go to the recorder."""
    with routed_to(recorder.emitter):
        recorder.open()
        try:
            yield recorder
        finally:
            recorder.close()


def written(recorder: Recorder, path: Path) -> Path:
    rows = recorder.rows()
    nsight_file.write(path, rows.tables() | machine.about(rows))
    return path


def parsed(recorder: Recorder, folder: Path) -> Dataset:
    return tracekit.parse(written(recorder, folder / "report.sqlite"), force=True)


def spans(path: Path) -> tuple[list[Span], list[Span]]:
    """The ranges and the operators of a file."""
    with closing(sqlite3.connect(path)) as db:
        texts: dict[int, Any] = dict(db.execute("SELECT id, value FROM StringIds"))
        ranges = db.execute('SELECT start, "end", globalTid, textId FROM NVTX_EVENTS').fetchall()
        ops = db.execute('SELECT start, "end", globalTid, nameId FROM TRACEKIT_CPU_OPS').fetchall()
    return tuple([Span(*row[:3], texts[row[3]]) for row in rows] for rows in (ranges, ops))


def texts_of(recorder: Recorder) -> list[str]:
    """Texts of the ranges, in the order in which they were opened."""
    rows = recorder.rows()
    in_order = sorted(rows.ranges, key=lambda row: row["start"])
    return [rows.strings[row["textId"]] for row in in_order]


def is_module(text: str) -> bool:
    """Whether it is a marker of a call, as capture spells them."""
    try:
        said = json.loads(text.replace("'", '"'))
    except ValueError:
        return False
    return isinstance(said, dict) and "Module" in said and "Outputs" not in said
