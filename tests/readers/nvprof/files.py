"""Small files as nvprof writes them, from lines of text.

A line is a word for its table, then values:

    push TID START END text          a range of a thread; END is - if it never ended
    api TID START END #ID call       a runtime call; driver likewise
    kernel START END #ID symbol      memcpy and memset likewise, without symbol
"""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.sqlite import writing
from tracekit.readers.nvprof.work import call_names

PID = 77
EPOCH = 1_583_975_499_000_000_000
_CALL = "cbid, start, end, processId, threadId, correlationId, returnValue"
_PLACE = "start, end, deviceId, contextId, streamId, correlationId"
_KERNEL = (
    f"cacheConfig BLOB, {_PLACE}, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, "
    "staticSharedMemory, dynamicSharedMemory, gridId, name"
)
_COPY = f"copyKind, bytes, {_PLACE}"
_ACTIVITIES = {
    "MARKER": "flags, timestamp, id, objectKind, objectId BLOB, name, domain",
    "RUNTIME": _CALL,
    "DRIVER": _CALL,
    "KERNEL": _KERNEL,
    "CONCURRENT_KERNEL": _KERNEL,
    "CDP_KERNEL": f"{_KERNEL}, parentGridId",
    "MEMCPY": _COPY,
    "MEMCPY2": _COPY,
    "MEMSET": f"value, bytes, {_PLACE}",
    "DEVICE": "globalMemoryBandwidth, globalMemorySize, coreClockRate, numMultiprocessors, computeCapabilityMajor, "
    "computeCapabilityMinor, id, name",
    "NAME": "objectKind, objectId BLOB, name",
}
_SIZES = dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1) | {
    "cacheConfig": b"\0",
    "blockX": 128,
    "registersPerThread": 32,
    "staticSharedMemory": 0,
    "dynamicSharedMemory": 64,
}


def activity(table: str) -> str:
    return f"CUPTI_ACTIVITY_KIND_{table}"


def object_id(tid: int, pid: int = PID) -> bytes:
    return struct.pack("<IiI", pid, tid, 0xBEEF)


def placed(start: int, end: int, correlation: int) -> dict[str, int]:
    return {
        "start": EPOCH + start,
        "end": EPOCH + end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": correlation,
    }


class Writer:
    """Writes a file row by row."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        key = "_id_ INTEGER PRIMARY KEY AUTOINCREMENT"
        self.db.execute(f"CREATE TABLE StringTable ({key}, value TEXT NOT NULL UNIQUE)")
        self.db.execute("INSERT INTO StringTable VALUES (0, '-- null --')")
        self.db.executescript("CREATE TABLE Version (version INTEGER); INSERT INTO Version VALUES (12)")
        for table, columns in _ACTIVITIES.items():
            self.db.execute(f"CREATE TABLE {activity(table)} ({key}, {columns})")
        self.marker_id = 0

    def row(self, table: str, **values: object) -> None:
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO {activity(table)} ({columns}) VALUES ({marks})", tuple(values.values()))  # noqa: S608

    def string(self, text: str) -> int:
        self.db.execute("INSERT OR IGNORE INTO StringTable (value) VALUES (?)", (text,))
        number: int = self.db.execute("SELECT _id_ FROM StringTable WHERE value = ?", (text,)).fetchone()[0]
        return number

    def marker(self, flags: int, time: int, tid: int, text: str = "", **more: object) -> None:
        values = {"id": self.marker_id, "objectKind": 2, "objectId": object_id(tid), "domain": 0}
        name = self.string(text) if text else 0
        self.row("MARKER", **(values | {"flags": flags, "timestamp": EPOCH + time, "name": name} | more))

    def push(self, tid: int, start: int, end: int | None, text: str, **more: object) -> None:
        self.marker_id += 1
        self.marker(2, start, tid, text, **more)
        if end is not None:
            self.marker(4, end, tid, **more)

    def kernel(self, start: int, end: int, correlation: int, symbol: str, **more: object) -> None:
        table = str(more.pop("table", "CONCURRENT_KERNEL"))
        values = _SIZES | placed(start, end, correlation) | {"gridId": correlation, "name": self.string(symbol)}
        self.row(table, **(values | more))

    def line(self, line: str) -> None:
        word, *rest = line.split(maxsplit=4)
        if word == "push":
            tid, start, end, text = rest
            self.push(int(tid), int(start), None if end == "-" else int(end), text)
        elif word in {"api", "driver"}:
            tid, start, end, call = rest
            number, name = call.split()
            table = "runtime" if word == "api" else "driver"
            caller = {"processId": PID, "threadId": int(tid), "cbid": call_names(table).index(name) + 1}
            place = placed(int(start), int(end), int(number[1:]))
            call_place = {column: place[column] for column in ("start", "end", "correlationId")}
            self.row(table.upper(), **caller, **call_place, returnValue=0)
        else:
            start, end, number, *symbol = rest
            place = int(start), int(end), int(number[1:])
            if word == "kernel":
                self.kernel(*place, *symbol)
            else:
                code = {"copyKind": 1} if word == "memcpy" else {"value": 0}
                self.row(word.upper(), bytes=64, **code, **placed(*place))


@contextmanager
def file_of(path: Path, lines: str) -> Iterator[Writer]:
    path.unlink(missing_ok=True)
    with writing(path) as db:
        writer = Writer(db)
        for line in filter(None, map(str.strip, lines.splitlines())):
            writer.line(line)
        yield writer
