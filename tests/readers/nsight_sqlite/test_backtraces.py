"""Backtraces of Python that nsys takes: payloads of marks, as nsys 2023.4 records them, and the calls they are of."""

import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tests.golden import expect
from tests.readers.folders import FORMS, in_form
from tests.sqlite import writing
from tests.trace_lines import report

LINES = """
    range   1    0 100 {'Module': 'top'}
    run     1   10  14 gemm
    run     1   30  34 gemm
    run     1   50  54 gemm
    run     1   70  74 gemm
    run     2   72  76 gemm
"""
SAMPLE, BY_CALL = 1, 2
TORCH = "/x/site-packages/torch/nn/functional.py"
FRAMES = [("linear", TORCH, 9), ("forward", "m.py", 42), ("&lt;module&gt;", "t.py", 3)]
#: When, what took it, and where the program was: in a call, before one, in one by a sample, and before one by a sample.
MARKS = [(11, BY_CALL, FRAMES), (29, BY_CALL, FRAMES[1:]), (52, SAMPLE, FRAMES[2:]), (60, SAMPLE, FRAMES)]
ROWS = """
    module  source           stack
    top     m.py:42 forward  t.py:3 <module>;m.py:42 forward
    top     m.py:42 forward  t.py:3 <module>;m.py:42 forward
    top     t.py:3 <module>  t.py:3 <module>
    top     -                -
    -       -                -
"""
Change = Callable[[bytes], bytes]


def with_marks(path: Path, change: Change = bytes) -> Path:
    report(path, LINES)
    with writing(path) as db:
        db.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT")
        (thread,) = db.execute("SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start = 10").fetchone()
        insert = "INSERT INTO NVTX_EVENTS (start, eventType, globalTid, domainId, binaryData) VALUES (?, 34, ?, 1, ?)"
        for start, taken, frames in MARKS:
            db.execute(insert, (start, thread, change(payload(db, taken, frames))))
    return path


def payload(db: sqlite3.Connection, taken: int, frames: list[tuple[str, str, int]]) -> bytes:
    # The upper bytes of the number of frames hold whatever was in memory.
    body = struct.pack("<IIHHI", 1, taken, len(frames), 0xABCD, 0x7F02)
    for function, file, line in frames:
        body += struct.pack("<QQQ", text(db, function), text(db, file), line)
    return struct.pack("<IIIIQQ", 1, 0, 3, 0, len(body), 32 + len(body)) + body


def text(db: sqlite3.Connection, value: str) -> int:
    (known,) = db.execute("SELECT max(id) FROM StringIds WHERE value = ?", (value,)).fetchone()
    if known is None:
        (known,) = db.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
        db.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (known, value))
    return int(known)


@pytest.mark.parametrize("form", FORMS)
def test_a_backtrace_is_of_the_call_that_took_it_and_a_sample_of_the_call_it_falls_into(
    tmp_path: Path, form: str
) -> None:
    path = with_marks(tmp_path / "report.sqlite")
    expect(tracekit.parse(in_form(form, path)), "kernels")(ROWS)


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:-1],
        lambda blob: blob[:10],
        lambda blob: blob[:40] + b"\x09" + blob[41:],  # another number of frames
        lambda blob: blob[:48] + b"\xff" * 8 + blob[56:],  # a function that is no string
        lambda blob: blob[:64] + bytes(8) + blob[72:],  # line 0
    ],
)
def test_what_is_no_backtrace_shows_no_line(tmp_path: Path, damage: Change) -> None:
    dataset = tracekit.parse(with_marks(tmp_path / "report.sqlite", damage))
    assert dataset.table("kernels").column("source").null_count == len(dataset.table("kernels"))
