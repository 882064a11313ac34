"""``api_calls``: CUDA calls that do not block and start no work, among them event records and waits for them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.attribution.base import Trace
from tracekit.schema import tables
from tracekit.tables.base import category, or_null, pieces
from tracekit.trace.host_calls import other_calls, streams_of

SPEC = tables.ApiCalls.SPEC


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
