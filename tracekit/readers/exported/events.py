"""What is decoded of an export: events by category, with the members of their ``args``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

RANGE, CALL, NODE, WORK = KINDS = ("range", "call", "node", "work")

#: Kinds by category; operators are ranges or work.
OF_CATEGORY = {
    "user_annotation": RANGE,
    "cuda_runtime": CALL,
    "module": NODE,
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "graph", "cpu_op"), WORK),
}


#: Numbers as tables hold them.
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Short = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Sizes = tuple[Short, Short, Short]
#: In nanoseconds it still is a number of 64 bits, and so is the sum of two.
_LARGEST_US = 1 << 52


class Args(Struct, gc=False):
    """The members of an event's ``args``; None where there is none."""

    name: str | None = None
    report: str | None = None
    process: Short | None = None
    thread: Short | None = None
    range_id: Long | None = None
    call_id: Long | None = None
    kernel_id: Long | None = None
    kind: str | None = None
    domain: str | None = None
    end_tid: Short | None = None
    payload_int: Long | None = None
    payload_json: str | None = None
    finished: bool = True
    nameless: bool = False
    module: str | None = None
    phase: str | None = None
    method: str | None = None
    cause: str | None = None
    full_name: str | None = None
    device: Short | None = None
    context: Short | None = None
    stream: Long | None = None
    correlation: Long | None = None
    bytes: Long | None = None
    copy_kind: str | None = None
    grid: Sizes | None = None
    block: Sizes | None = None
    registers: Short | None = field(name="registers per thread", default=None)
    static_smem_bytes: Short | None = None
    dynamic_smem_bytes: Short | None = None
    graph_id: Long | None = field(name="graph id", default=None)
    graph_exec_id: Long | None = None
    graph_node_id: Long | None = field(name="graph node id", default=None)
    original_graph_node_id: Long | None = None


class Event(Struct, gc=False):
    """An event."""

    ph: str
    pid: Short
    tid: Short
    args: Args
    name: str = ""
    cat: str = ""
    ts: Annotated[float, Meta(ge=-_LARGEST_US, le=_LARGEST_US)] = 0.0
    dur: Annotated[float, Meta(ge=0, le=_LARGEST_US)] = 0.0


class Other(Struct):
    """What an export says beside its events."""

    tracekit: str | None = None
    timeline: int = 0
    by: str = ""
    times_moved_by_ns: Long = 0
    started_utc_ns: Long | None = None
    ambiguous_processes: bool = False
    processes: list[dict[str, int | str | None]] = field(default_factory=list)
    devices: list[dict[str, int | float | str | None]] = field(default_factory=list)
    ranks: list[dict[str, int | str | None]] = field(default_factory=list)


#: Members that are true or false.
FLAGS = ("finished",)
#: Members by kind, as columns.
MEMBERS = {
    RANGE: ("range_id", "kind", "domain", "end_tid", "payload_int", "payload_json", *FLAGS),
    CALL: ("correlation",),
    NODE: ("call_id", "range_id", "module", "phase"),
    WORK: (
        *("kind", "full_name", "device", "context", "stream", "correlation", "bytes", "copy_kind"),
        *("registers", "static_smem_bytes", "dynamic_smem_bytes", "graph_id", "graph_exec_id", "graph_node_id"),
        "original_graph_node_id",
        *("grid", "block", "kernel_id", "call_id", "module", "method", "cause"),
    ),
}
#: Members that are texts, and those that are three sizes; all others but flags are integers.
TEXTS = {"kind", "domain", "payload_json", "module", "phase", "full_name", "copy_kind", "method", "cause"}
SIZES = ("grid", "block")
