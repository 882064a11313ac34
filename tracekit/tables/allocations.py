"""``allocations``: memory that allocators handed out and took back, and until when each piece was held."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Ints
from tracekit.attribution.base import Trace
from tracekit.recording.tables import Allocations
from tracekit.schema import tables
from tracekit.tables.base import call_around, category, module_paths, or_null, pieces
from tracekit.trace.steps.steps import step_at

SPEC = tables.Allocations.SPEC
_NEVER = np.iinfo(np.int64).min


def build(trace: Trace) -> Iterator[pa.Table]:
    """The rows by time."""
    evidence = trace.evidence
    recording, found = evidence.recording, evidence.recording.allocations
    call = call_around(trace, found.thread, found.time_ns, found.time_ns)
    module, paths = lookup(evidence.calls.module, call), module_paths(trace)
    step = step_at(evidence.steps, found.thread, found.process, found.time_ns, found.time_ns)
    ends = _taken_back(found)
    for rows in pieces(np.arange(found.time_ns.size)):
        some = found.take(rows)
        yield SPEC.table(
            {
                "start_ns": some.time_ns,
                "end_ns": or_null(ends[rows], _NEVER),
                "bytes": some.bytes,
                "total_bytes": or_null(some.total_bytes),
                "device": or_null(some.device),
                "pid": recording.threads.process_pid[some.process].astype(np.int32),
                "rank": or_null(recording.process_rank[some.process]),
                "tid": or_null(lookup(recording.threads.tid, some.thread)),
                "module_id": or_null(module[rows]),
                "module": category(module[rows], paths),
                "call_id": or_null(lookup(trace.ids.call_id, call[rows])),
                "step_id": or_null(step[rows]),
            }
        )


def _taken_back(found: Allocations) -> Ints:
    """For every piece that was handed out when it was taken back: the next time that anything happens at its place."""
    order = np.lexsort((found.address, found.device, found.process))
    before, after = order[:-1], order[1:]
    same = (found.address[before] >= 0) & (found.bytes[before] > 0) & (found.bytes[before] == -found.bytes[after])
    for column in (found.process, found.device, found.address):
        same &= column[before] == column[after]
    ends = np.full(order.size, _NEVER)
    ends[before[same]] = found.time_ns[after[same]]
    return ends
