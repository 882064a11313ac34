"""The real Kineto traces, and what they hold by the plainest reading."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.needs import TRACES
from tracekit.capture.kineto import rows_of

if TYPE_CHECKING:
    from tracekit.capture.rows import Rows

NAMES = (
    "vllm_eager_b200.json.gz",
    "with_stack_qwen_h100.json.gz",
    "nccl_collectives.json.gz",
    "user_annotation_steps.json.gz",
    "graph_ids.json",
)
#: Categories of work on the device, and the tables that they become.
WORK = {"kernel": "kernels", "gpu_memcpy": "memcpys", "gpu_memset": "memsets"}


class Event(NamedTuple):
    """A complete event; times are exact, in nanoseconds."""

    category: str
    name: str
    start: int
    end: int
    args: dict[str, Any]
    thread: int | None


@cache
def trace(name: str) -> dict[str, Any]:
    return json.loads(_text(name))


@cache
def events(name: str) -> list[Event]:
    """All complete events that a report can hold, times since the first of them."""
    found = json.loads(_text(name), parse_float=Decimal)["traceEvents"]
    kept = {*WORK, "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
    mine = [event for event in found if event.get("ph") == "X" and event.get("cat") in kept]
    zero = min(int(event["ts"] * 1000) for event in mine)
    return [
        Event(
            event["cat"],
            event["name"],
            start := int(event["ts"] * 1000) - zero,
            start + int(event.get("dur", 0) * 1000),
            event.get("args", {}),
            event["tid"] if isinstance(event["tid"], int) else None,
        )
        for event in mine
    ]


@cache
def rows(name: str) -> Rows:
    return rows_of(trace(name), (), pid(name))


def pid(name: str) -> int:
    (found,) = {event["pid"] for event in trace(name)["traceEvents"] if event.get("cat") == "cpu_op"}
    return found


def _text(name: str) -> bytes:
    data = (TRACES / "kineto" / name).read_bytes()
    return gzip.decompress(data) if name.endswith("gz") else data
