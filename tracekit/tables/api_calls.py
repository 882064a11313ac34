"""``api_calls``: CUDA calls that do not block and start no work, among them event records and waits for them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.attribution.base import Trace
from tracekit.schema import CATEGORY, Column, Nullable, TableSpec
from tracekit.tables.base import category, or_null, pieces
from tracekit.trace.host_calls import other_calls, streams_of

_OF_EVENTS = "for event records and stream waits, if the report has it; otherwise null."
SPEC = TableSpec(
    "api_calls",
    "One row per CUDA API call that does not block (see waits) and started no device work (see kernels), sorted by "
    "start_ns: event records, waits of streams for them, queries, launches into a graph capture.",
    (
        Nullable("name", CATEGORY, "Name of the call; null if unknown."),
        Column("pid", pa.int32(), "Process id."),
        Column("tid", pa.int32(), "Thread id."),
        Column("start_ns", pa.int64(), "Start on the host, in ns since the start of the session."),
        Column("dur_ns", pa.int64(), "How long it took."),
        Nullable("device", pa.int32(), f"Number of the GPU, {_OF_EVENTS}"),
        Nullable("context", pa.int32(), f"Id of the CUDA context, {_OF_EVENTS}"),
        Nullable("stream", pa.int64(), f"Stream that records or waits, {_OF_EVENTS}"),
        Nullable(
            "kernel_id",
            pa.int64(),
            "What a stream waits for: the last to end of the work that had been launched on the event's stream before "
            "the event record. Null if there is none, or if the report does not record it.",
        ),
    ),
    sorted_by=("start_ns",),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The calls by start."""
    recording, found = trace.evidence.recording, other_calls(trace.evidence)
    threads, thread = recording.threads, found.calls.thread.astype(np.intp)
    device, context, stream = streams_of(recording, found)
    for rows in pieces(np.arange(thread.size)):
        calls = found.calls.take(rows)
        yield SPEC.table(
            {
                "name": category(calls.name, recording.names),
                "pid": threads.pid[thread[rows]].astype(np.int32),
                "tid": threads.tid[thread[rows]].astype(np.int32),
                "start_ns": calls.start_ns,
                "dur_ns": calls.end_ns - calls.start_ns,
                "device": or_null(device[rows]),
                "context": or_null(context[rows]),
                "stream": or_null(stream[rows]),
                "kernel_id": or_null(lookup(trace.ids.kernel_id, found.work[rows])),
            }
        )
