"""Whose the work is by torch.profiler's own trace: by the ranges that a program's hooks opened, and by nothing else.

It reads the Chrome trace by itself, knowing neither tracekit's readers nor its markers. On a GPU, work belongs to the
innermost range around the API call that launched it; without one, operators are the work, each without those inside.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

#: How the ranges of the program's hooks begin.
PREFIX = "truth:"
#: For work outside all of its ranges.
NONE = "no module"
_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
_API_CALLS = {"cuda_runtime", "cuda_driver"}
Event = dict[str, Any]


class Work(NamedTuple):
    """Work by module.

    Attributes:
        counts: How many kernels, copies and memsets, or operators.
        times_ns: How long they took.
    """

    counts: Counter[str]
    times_ns: Counter[str]


class _Span(NamedTuple):
    """A range or an operator on a thread, in nanoseconds."""

    start: int
    end: int
    path: str | None


def work_in(trace: Path) -> Work:
    """The work in a trace by the module whose range was open."""
    # Microseconds since the epoch with nanoseconds behind the point do not fit into a float.
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file, parse_float=Decimal)["traceEvents"] if event.get("ph") == "X"]
    on_device = [event for event in events if event.get("cat") in _DEVICE_WORK]
    return _of_device(events, on_device) if on_device else _of_operators(events)


def _of_device(events: Sequence[Event], on_device: Iterable[Event]) -> Work:
    spans = _spans(event for event in events if _is_truth(event))
    launches = {
        (event["args"]["correlation"]): event
        for event in events
        if event.get("cat") in _API_CALLS and "correlation" in event.get("args", {})
    }
    work = Work(Counter(), Counter())
    for event in on_device:
        launch = launches.get(event["args"].get("correlation"))
        path = NONE if launch is None else _innermost(spans[_thread(launch)], _start(launch))
        work.counts[path] += 1
        work.times_ns[path] += _end(event) - _start(event)
    return work


def _of_operators(events: Sequence[Event]) -> Work:
    work = Work(Counter(), Counter())
    for spans in _spans(event for event in events if _is_truth(event) or event.get("cat") == "cpu_op").values():
        for path, own_ns in _own_times(spans):
            work.counts[path] += 1
            work.times_ns[path] += own_ns
    return work


def _own_times(spans: Sequence[_Span]) -> Iterator[tuple[str, int]]:
    """Module and own time of every operator of a thread."""
    open_: list[_Span] = []
    own: list[tuple[str, list[int]]] = []
    mine: list[list[int] | None] = []
    for span in spans:
        while open_ and open_[-1].end <= span.start:
            open_.pop()
            mine.pop()
        times = None
        if span.path is None:
            times = [span.end - span.start]
            own.append((_path(open_), times))
            if around := next((one for one in reversed(mine) if one is not None), None):
                around.append(span.start - span.end)
        open_.append(span)
        mine.append(times)
    for path, times in own:
        yield path, sum(times)


def _innermost(spans: Sequence[_Span], at: int) -> str:
    return _path([span for span in spans if span.start <= at < span.end])


def _path(around: Sequence[_Span]) -> str:
    """The innermost range's path; ranges are in order, outer ones first."""
    return next((span.path for span in reversed(around) if span.path is not None), NONE)


def _spans(events: Iterable[Event]) -> defaultdict[tuple[int, int], list[_Span]]:
    """Ranges and operators by thread, outer ones first."""
    spans: defaultdict[tuple[int, int], list[_Span]] = defaultdict(list)
    for event in events:
        path = event["name"].removeprefix(PREFIX) if _is_truth(event) else None
        spans[_thread(event)].append(_Span(_start(event), _end(event), path))
    for of_thread in spans.values():
        of_thread.sort(key=lambda span: (span.start, -span.end))
    return spans


def _is_truth(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and str(event.get("name")).startswith(PREFIX)


def _thread(event: Event) -> tuple[int, int]:
    return event["pid"], event["tid"]


def _start(event: Event) -> int:
    return int(Decimal(event["ts"]) * 1000)


def _end(event: Event) -> int:
    return int((Decimal(event["ts"]) + Decimal(event["dur"])) * 1000)
