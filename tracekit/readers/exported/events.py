"""What is decoded of an export: events by category, with the members of their ``args``."""

from __future__ import annotations

from msgspec import Struct, field

RANGE, CALL, NODE, WORK = KINDS = ("range", "call", "node", "work")

#: Kinds by category; operators are ranges or work.
OF_CATEGORY = {
    "user_annotation": RANGE,
    "cuda_runtime": CALL,
    "module": NODE,
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "graph", "cpu_op"), WORK),
}


class Args(Struct, gc=False):
    """The members of an event's ``args``; None where there is none."""

    name: str | None = None
    report: str | None = None
    process: int | None = None
    thread: int | None = None
    range_id: int | None = None
    call_id: int | None = None
    kernel_id: int | None = None
    kind: str | None = None
    domain: str | None = None
    end_tid: int | None = None
    payload_int: int | None = None
    payload_json: str | None = None
    finished: bool = True
    nameless: bool = False
    module: str | None = None
    phase: str | None = None
    method: str | None = None
    cause: str | None = None
    full_name: str | None = None
    device: int | None = None
    context: int | None = None
    stream: int | None = None
    correlation: int | None = None
    bytes: int | None = None
    copy_kind: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = field(name="registers per thread", default=None)
    static_smem_bytes: int | None = None
    dynamic_smem_bytes: int | None = None
    graph_id: int | None = field(name="graph id", default=None)
    graph_exec_id: int | None = None
    graph_node_id: int | None = field(name="graph node id", default=None)
    original_graph_node_id: int | None = None


class Event(Struct, gc=False):
    """An event."""

    ph: str
    pid: int
    tid: int
    args: Args
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0


class Other(Struct):
    """What an export says beside its events."""

    tracekit: str | None = None
    times_moved_by_ns: int = 0
    started_utc_ns: int | None = None
    ambiguous_processes: bool = False
    processes: list[dict[str, int | str | None]] = field(default_factory=list)
    devices: list[dict[str, int | float | str | None]] = field(default_factory=list)
    ranks: list[dict[str, int | str | None]] = field(default_factory=list)


#: Members that are true or false.
FLAGS = ("finished", "nameless")
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
