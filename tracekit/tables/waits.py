"""``waits``: calls on the host that block their thread, and what they waited for."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.attribution.base import Trace
from tracekit.schema import CATEGORY, Column, Nullable, TableSpec
from tracekit.tables.base import call_around, category, module_paths, or_null, pieces
from tracekit.trace.host_calls import WAIT_KINDS, waits
from tracekit.trace.steps.steps import step_at

SPEC = TableSpec(
    "waits",
    "One row per call on the host that blocks its thread, sorted by start_ns; its time is that of the whole call, as "
    "reports do not record when it begins to wait. cudaEventQuery does not block.",
    (
        Column(
            "kind",
            CATEGORY,
            "synchronize (*Synchronize), copy (a copy that is not Async), pageable_copy (any copy with an end in "
            "pageable memory of the host), allocation (cudaMalloc*, cudaHostAlloc), free (cudaFree*; those that end in "
            "Async do not block), module_loading (cuModuleLoad*, cuLibraryLoad*, and what the driver loads inside the "
            "call that first needs it, where recorded), or os_wait (a wait of the runtime of the operating system).",
        ),
        Nullable("name", CATEGORY, "Name of the call; null if unknown."),
        Column("pid", pa.int32(), "Process id."),
        Nullable("rank", pa.int32(), "Rank of the process in its job; null if unknown."),
        Column("tid", pa.int32(), "Thread id."),
        Column("start_ns", pa.int64(), "Start on the host, in ns since the start of the session."),
        Column("dur_ns", pa.int64(), "How long it took."),
        Nullable("module_id", pa.int32(), "Module of the innermost call around it; null outside calls."),
        Nullable("module", CATEGORY, "Path of that module."),
        Nullable("call_id", pa.int64(), "That call of the module."),
        Nullable("step_id", pa.int64(), "Step it ran in; null outside steps."),
        Nullable(
            "kernel_id",
            pa.int64(),
            "Work that it waited for: that of a copy; for other calls, the last to end of the work launched before on "
            "the stream or context, or before the event record. Null if the report does not record it.",
        ),
    ),
    sorted_by=("start_ns",),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The calls by start."""
    evidence = trace.evidence
    recording, found = evidence.recording, waits(evidence)
    thread = found.calls.thread.astype(np.intp)
    process = recording.threads.process[thread]
    call = call_around(trace, thread, found.calls.start_ns, found.calls.end_ns)
    module = lookup(evidence.calls.module, call)
    step = step_at(evidence.steps, thread, process, found.calls.start_ns, found.calls.end_ns)
    paths = module_paths(trace)
    for rows in pieces(np.arange(thread.size)):
        calls = found.calls.take(rows)
        yield SPEC.table(
            {
                "kind": category(found.kind[rows], WAIT_KINDS),
                "name": category(calls.name, recording.names),
                "pid": recording.threads.pid[thread[rows]].astype(np.int32),
                "rank": or_null(recording.process_rank[process[rows]]),
                "tid": recording.threads.tid[thread[rows]].astype(np.int32),
                "start_ns": calls.start_ns,
                "dur_ns": calls.end_ns - calls.start_ns,
                "module_id": or_null(module[rows]),
                "module": category(module[rows], paths),
                "call_id": or_null(lookup(trace.ids.call_id, call[rows])),
                "step_id": or_null(step[rows]),
                "kernel_id": or_null(lookup(trace.ids.kernel_id, found.work[rows])),
            }
        )
