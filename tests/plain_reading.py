"""Reads a report in the plainest way: every row a dictionary, every question a search over all of them."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


#: It starts nothing and may have the id of a launch.
IDLE = "cudaMalloc_v3020"


class FileRange(NamedTuple):
    start: int
    end: int
    text: str | None
    thread: int
    same_thread: bool


class File:
    """A report read back in the plainest way."""

    def __init__(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.row_factory = sqlite3.Row
            self.tables = {
                name: [dict(row) for row in db.execute(f"SELECT * FROM {name}")]  # noqa: S608
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            }
        strings = {row["id"]: row["value"] for row in self.rows("StringIds")}
        nvtx = [row for row in self.rows("NVTX_EVENTS") if row["eventType"] in {59, 60}]
        calls = [
            row
            for row in self.rows("CUPTI_ACTIVITY_KIND_RUNTIME")
            if row["eventClass"] != 67
            and row["correlationId"] is not None
            and not row["returnValue"]
            and strings[row["nameId"]] != IDLE
        ]
        last: dict[int, int] = {}
        for row in [*nvtx, *calls]:
            last[row["globalTid"]] = max(
                last.get(row["globalTid"], row["start"]), row["start"], row["end"] or row["start"]
            )
        ranges = [
            (
                row["eventType"],
                FileRange(
                    row["start"],
                    last[row["globalTid"]] if row["end"] is None else row["end"],
                    row["text"] if row["text"] is not None else strings.get(row["textId"]),
                    row["globalTid"],
                    row["endGlobalTid"] is None,
                ),
            )
            for row in nvtx
        ]
        self.push_pop = [one for kind, one in ranges if kind == 59]
        self.start_end = [one for kind, one in ranges if kind == 60]
        self.named = strings
        self.launches = {(row["globalTid"] & ~0xFFFFFF, row["correlationId"]): row for row in calls}
        assert len(self.launches) == len(calls)

    def rows(self, table: str) -> list[dict]:
        return self.tables.get(table, [])

    def work(self) -> list[dict]:
        names = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
        return [row for name in names for row in self.rows(f"CUPTI_ACTIVITY_KIND_{name}")]

    def launch_of(self, work: dict) -> dict | None:
        """The API call with the id of a piece of work, if it began no later."""
        launch = self.launches.get((work["globalPid"], work["correlationId"]))
        return launch if launch and launch["start"] <= work["start"] else None

    def around(self, thread: int, start: int, end: int) -> list[FileRange]:
        """The push/pop ranges that contain an interval, outermost first."""
        found = [one for one in self.push_pop if one.thread == thread and one.start <= start and end <= one.end]
        return sorted(found, key=lambda one: (one.start, -one.end))

    def api_calls(self, thread: int, start: int, end: int) -> list[dict]:
        """The API calls of a thread that contain an interval."""
        return [
            row
            for row in self.launches.values()
            if row["globalTid"] == thread and row["start"] <= start and end <= row["end"]
        ]

    def name(self, row: dict) -> str:
        """What an API call or a graph's record is called, without the ABI's version."""
        return re.sub(r"_v\d+$", "", self.named[row["nameId"]])


def place_of(calls: list[FileRange], dialect: str) -> str | None:
    """Where the innermost of some calls stands, by what the markers of all of them say."""
    place = above = None
    for said in (path_said(one.text or "", dialect) for one in calls):
        below = above is not None and said.startswith(f"{above}.")
        own = said.removeprefix(above or "") if below else f".{said.split('.')[-1]}"
        place, above = said if place is None else place + own, said
    return place


def is_call(one: FileRange) -> bool:
    text = one.text or ""
    return (text.startswith(("{'Module': '", '{"Module": ')) and "Outputs'" not in text and 'Outputs"' not in text) or (
        " in=[" in text
    )


def path_said(text: str, dialect: str) -> str:
    if dialect == "compact":
        return text.split(" in=")[0]
    return text.split(": ")[1].split(",")[0].strip("{}'\"")
