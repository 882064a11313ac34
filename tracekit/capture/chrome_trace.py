"""torch.profiler's own trace as ``--hierarchy`` leaves it: with the texts of our markers, of all processes in one file.

Every event has a line of its own, so that it can be read and changed piece by piece. Ids that count in each process by
itself are moved apart. Operators begin where they begin in the report (see :mod:`tracekit.capture.evaluations`). The
hierarchies of modules are not in it yet: which module an operator belongs to is decided where reports are read.
"""

from __future__ import annotations

import gzip
import json
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from tracekit.capture.kineto import nanoseconds
from tracekit.errors import CaptureError
from tracekit.files import reason_of, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tracekit.capture.kineto import ProcessTrace
    from tracekit.capture.rows import Row, Rows

_ENCODER = msgspec.json.Encoder()
#: Events that are written at once: many small pieces take long to compress.
_BATCH = 10_000
#: Fast enough not to delay the end of the program.
_LEVEL = 1
_RANGES = ("cpu_op", "user_annotation")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
#: Ids that each process counts by itself, and what sets those of the processes apart.
_IDS = ("correlation", "External id")
_IDS_BITS, _PIDS_BITS = 32, 23
#: True of one process only.
_OF_ONE_PROCESS = ("distributedInfo", "trace_id")


def keep_chrome_trace(processes: Sequence[ProcessTrace], rows: Rows, place: Path, warnings: list[str]) -> None:
    """Writes the traces of the processes of one machine as one. A failure is a warning: the report is worth more.

    Args:
        processes: The traces.
        rows: What they were converted to.
        place: Where the trace goes.
        warnings: Where a failure is added.
    """
    try:
        _write(processes, rows, place)
    except OSError as error:
        warnings.append(f"{place}: the Chrome trace could not be written ({reason_of(error)})")
    except CaptureError as error:
        warnings.append(f"{place}: the Chrome trace could not be written: {error}")


def _write(processes: Sequence[ProcessTrace], rows: Rows, place: Path) -> None:
    first, *others = (process.trace for process in processes)
    about = {name: value for name, value in first.items() if name != "traceEvents"}
    if others:
        about = {name: value for name, value in about.items() if name not in _OF_ONE_PROCESS}
    with whole_file(place) as partial, gzip.open(partial, "wb", _LEVEL) as file:
        file.write(_lines([about])[:-1] + b',"traceEvents":[')
        events, separator = _events(processes, iter(rows.operators.values("start"))), b"\n"
        while batch := list(islice(events, _BATCH)):
            file.write(separator + _lines(batch))
            separator = b",\n"
        file.write(b"\n]}\n")


def _lines(values: Sequence[Row]) -> bytes:
    """Each value on a line, as JSON; texts that UTF-8 does not have are changed."""
    try:
        return _ENCODER.encode_lines(values)[:-1].replace(b"\n", b",\n")
    except UnicodeEncodeError:
        texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
        return ",\n".join(texts).encode("utf-8", "replace")


def _events(processes: Iterable[ProcessTrace], starts: Iterator[int]) -> Iterator[Row]:
    """The events of all processes.

    Args:
        processes: The processes.
        starts: When the operators of all of them begin, since the base of the first one.
    """
    base_ns: int | None = None
    for number, process in enumerate(processes):
        own_base_ns = process.trace["baseTimeNanoseconds"]
        base_ns = own_base_ns if base_ns is None else base_ns
        for event in process.trace["traceEvents"]:
            kept = _named(event, process)
            if kept.get("cat") == "cpu_op" and kept.get("ph") == "X":
                kept = _beginning(kept, next(starts) - own_base_ns + base_ns)
            yield _apart(kept, process, number, own_base_ns - base_ns) if number else kept


def _named(event: Row, process: ProcessTrace) -> Row:
    """The event with its own name, if it is a range. Our ranges are annotations: no operators."""
    if event.get("ph") != "X" or event.get("cat") not in (*_RANGES, "gpu_user_annotation"):
        return event
    name = str(event["name"])
    if (text := process.marker_text(name)) is not None:
        category = event["cat"].replace("cpu_op", "user_annotation")
        return event | {"cat": category, "name": text}
    if event["cat"] == "user_annotation":
        start = nanoseconds(event["ts"])
        return event | {"name": process.annotation_name(name, start, start + nanoseconds(event.get("dur", 0)))}
    return event


def _beginning(event: Row, start_ns: int) -> Row:
    """The event from that time on, with the same end."""
    late_ns = start_ns - nanoseconds(event["ts"])
    if not late_ns:
        return event
    return event | {"ts": start_ns / 1_000, "dur": (nanoseconds(event["dur"]) - late_ns) / 1_000}


def _apart(event: Row, process: ProcessTrace, number: int, later_ns: int) -> Row:
    """The event of a further process, on the clock of the first one and with ids of its own."""
    event = dict(event)
    if later_ns and "ts" in event:
        event["ts"] = (nanoseconds(event["ts"]) + later_ns) / 1_000
    if isinstance(event.get("pid"), int) and event["pid"] != process.pid:
        # Devices are processes, too: streams of the same number must not share a track.
        event["pid"] += number << _PIDS_BITS
    if isinstance(event.get("id"), int):
        event["id"] += number << _IDS_BITS
    if isinstance(args := event.get("args"), dict):
        moved = {name: args[name] + (number << _IDS_BITS) for name in _IDS if isinstance(args.get(name), int)}
        if "device" in args and event.get("cat") in _ON_DEVICE:
            moved["device"] = process.devices.get(args["device"], args["device"])
        event["args"] = args | moved
    return event
