"""Reads Kineto's Chrome trace piece by piece: a trace of a few million operators would not fit into memory as JSON."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from tracekit.capture.rows import Row

_PIECE_BYTES = 4 << 20
_EVENTS = b'"traceEvents": ['
#: Ends of an event that another one follows, and of the list of events.
_END, _LAST = b"\n  },\n", b"\n  ]"
_BASE = re.compile(rb'"baseTimeNanoseconds": (\d+)')
#: An annotation's name in Kineto's trace. Kineto does not escape quotes in it.
_QUOTED = re.compile(rb'("cat": "\w*user_annotation",\s*"name": ").*(",\s*"pid": )')


def trace_in(path: Path) -> Row:
    """The trace in a file: what it says before its events, and ``traceEvents``.

    The events are read while they are iterated over, once. If quotes in the names of annotations make the JSON invalid,
    these names are empty.

    Raises:
        CaptureError: If it is invalid JSON for another reason; also while the events are read.
    """
    with path.open("rb") as file:
        head = file.read(_PIECE_BYTES)
    base = _BASE.search(head)
    about = {"baseTimeNanoseconds": int(base[1]) if base else 0, "traceEvents": _events(path)}
    return _metadata(head.partition(_EVENTS)[0]) | about


def _metadata(head: bytes) -> Row:
    """What stands before the events; nothing where Kineto wrote it in another way."""
    try:
        metadata: Row = json.loads(head.rstrip().rstrip(b",") + b"}")
    except ValueError:
        return {}
    return metadata


def _events(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        rest = file.read(_PIECE_BYTES)
        _, start, events = rest.partition(_EVENTS)
        if not start:
            yield from _whole(rest + file.read())
            return
        rest = yield from _all_but_last(file, events)
    last = rest.rpartition(_LAST)[0]
    if (parsed := _parsed(last)) is None:
        raise _invalid()
    yield from parsed


def _all_but_last(file: BinaryIO, rest: bytes) -> Generator[Row, None, bytes]:
    """Yields the events of every piece that ends with an event. Returns what is left."""
    while piece := file.read(_PIECE_BYTES):
        rest += piece
        events, end, after = rest.rpartition(_END)
        # What looks like an event's end may be part of a name: then the piece is read together with the next one.
        if end and (parsed := _parsed(events + _END.rstrip(b",\n"))) is not None:
            yield from parsed
            rest = after
    return rest


def _whole(content: bytes) -> list[Row]:
    """The events of a trace that is laid out in another way."""
    try:
        events: list[Row] = json.loads(content)["traceEvents"]
    except (ValueError, KeyError):
        raise _invalid() from None
    return events


def _parsed(events: bytes) -> list[Row] | None:
    for text in (events, _QUOTED.sub(rb"\1\2", events)):
        try:
            rows: list[Row] = json.loads(b"[" + text + b"]")
        except ValueError:
            continue
        return rows
    return None


def _invalid() -> CaptureError:
    return CaptureError(
        "torch.profiler wrote a trace that is not valid JSON; record with --engine nsys, or use another torch release"
    )
