"""``waits``: calls on the host that block their thread, and what they waited for."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.attribution.base import Trace
from tracekit.schema import tables
from tracekit.tables.base import call_around, category, module_paths, or_null, pieces
from tracekit.trace.host_calls import WAIT_KINDS, waits
from tracekit.trace.steps.steps import step_at

SPEC = tables.Waits.SPEC


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
