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
#: The columns of an older nvprof: it knows no graphs and no kinds of memory, and writes some that nobody reads.
TABLES = {
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


def object_id(tid: int, pid: int = PID) -> bytes:
    return struct.pack("<IiI", pid, tid, 0xBEEF)


class Writer:
    """Writes a file row by row."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        key = "_id_ INTEGER PRIMARY KEY AUTOINCREMENT"
        self.db.execute(f"CREATE TABLE StringTable ({key}, value TEXT NOT NULL UNIQUE)")
        self.db.execute("INSERT INTO StringTable VALUES (0, '-- null --')")
        self.db.executescript("CREATE TABLE Version (version INTEGER); INSERT INTO Version VALUES (12)")
        for table, columns in TABLES.items():
            self.db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} ({key}, {columns})")
        self.marker_id = 0

    def row(self, table: str, **values: object) -> None:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} ({names}) VALUES ({marks})", tuple(values.values()))  # noqa: S608

    def placed(self, table: str, start: int, end: int, correlation: int, **more: object) -> None:
        self.row(table, start=EPOCH + start, end=EPOCH + end, correlationId=correlation, **more)

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
            self.placed(table.upper(), int(start), int(end), int(number[1:]), **caller, returnValue=0)
        else:
            start, end, number, *symbol = rest
            place = {"deviceId": 0, "contextId": 1, "streamId": 7}
            of_work = {
                "kernel": {"name": self.string("".join(symbol)), "cacheConfig": b"\0", "gridId": int(number[1:])},
                "memcpy": {"copyKind": 1, "bytes": 64},
                "memset": {"value": 0, "bytes": 64},
            }
            table = "CONCURRENT_KERNEL" if word == "kernel" else word.upper()
            self.placed(table, int(start), int(end), int(number[1:]), **place, **of_work[word])


@contextmanager
def file_of(path: Path, lines: str) -> Iterator[Writer]:
    path.unlink(missing_ok=True)
    with writing(path) as db:
        writer = Writer(db)
        for line in filter(None, map(str.strip, lines.splitlines())):
            writer.line(line)
        yield writer
