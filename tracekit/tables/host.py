"""Tables of the host: ``api_calls``, ``waits``, ``allocations`` and ``steps``, each by time."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Ints, Rows
from tracekit.attribution.base import Trace
from tracekit.recording.tables import Allocations
from tracekit.schema import tables
from tracekit.tables.base import Columns, category, module_paths, of_thread, or_null, pieces
from tracekit.trace import host_calls
from tracekit.trace.steps import step_at

_NEVER = np.iinfo(np.int64).min


def api_calls(trace: Trace) -> Iterator[pa.Table]:
    """CUDA calls that do not block and start no work, among them event records and waits for them."""
    recording, found = trace.evidence.recording, host_calls.other_calls(trace.evidence)
    threads, thread = recording.threads, found.calls.thread.astype(np.intp)
    device, context, stream = host_calls.streams_of(recording, found)
    for rows in pieces(np.arange(thread.size)):
        calls = found.calls.take(rows)
        yield tables.ApiCalls.SPEC.table(
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


def waits(trace: Trace) -> Iterator[pa.Table]:
    """Calls that block their thread, and what they waited for."""
    recording, found = trace.evidence.recording, host_calls.waits(trace.evidence)
    thread = found.calls.thread.astype(np.intp)
    around = _around(trace, thread, recording.threads.process[thread], found.calls.start_ns, found.calls.end_ns)
    for rows in pieces(np.arange(thread.size)):
        calls = found.calls.take(rows)
        yield tables.Waits.SPEC.table(
            {
                "kind": category(found.kind[rows], host_calls.WAIT_KINDS),
                "name": category(calls.name, recording.names),
                **of_thread(recording, thread[rows]),
                "start_ns": calls.start_ns,
                "dur_ns": calls.end_ns - calls.start_ns,
                **around(rows),
                "kernel_id": or_null(lookup(trace.ids.kernel_id, found.work[rows])),
            }
        )


def allocations(trace: Trace) -> Iterator[pa.Table]:
    """Memory that allocators handed out and took back, and until when each piece was held."""
    recording = trace.evidence.recording
    found = recording.allocations
    around = _around(trace, found.thread, found.process, found.time_ns, found.time_ns)
    ends = _taken_back(found)
    for rows in pieces(np.arange(found.time_ns.size)):
        some = found.take(rows)
        yield tables.Allocations.SPEC.table(
            {
                "start_ns": some.time_ns,
                "end_ns": or_null(ends[rows], _NEVER),
                "bytes": some.bytes,
                "total_bytes": or_null(some.total_bytes),
                "device": or_null(some.device),
                "pid": recording.threads.process_pid[some.process].astype(np.int32),
                "rank": or_null(recording.process_rank[some.process]),
                "tid": or_null(lookup(recording.threads.tid, some.thread)),
                **around(rows),
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


def _around(trace: Trace, thread: Ints, process: Ints, start_ns: Ints, end_ns: Ints) -> Columns:
    """The innermost call of a known module around each piece of host work, and its step."""
    call, paths = _call_around(trace, thread, start_ns, end_ns), module_paths(trace)
    module = lookup(trace.evidence.calls.module, call)
    step = step_at(trace.evidence.steps, thread, process, start_ns, end_ns)

    def columns(rows: Rows) -> dict[str, object]:
        return {
            "module_id": or_null(module[rows]),
            "module": category(module[rows], paths),
            "call_id": or_null(lookup(trace.ids.call_id, call[rows])),
            "step_id": or_null(step[rows]),
        }

    return columns


def _call_around(trace: Trace, thread: Ints, start_ns: Ints, end_ns: Ints) -> Rows:
    ranges, calls = trace.evidence.recording.ranges, trace.evidence.calls
    known = np.flatnonzero(trace.ids.call_id >= 0)
    if not thread.size or not known.size:
        return np.full(thread.size, -1)
    at = calls.range_row[known]
    own, last_ns = ranges.thread[at], trace.evidence.ends.end_ns[calls.last_range[known]]
    start, end, first, last = one_axis([own, own, thread, thread], [ranges.start_ns[at], last_ns, start_ns, end_ns])
    order = nesting_order(start, end)
    start, end = start[order], end[order]
    return np.append(known[order], -1)[innermost(start, end, parents(start, end)[0], first, last)]


def steps(trace: Trace) -> Iterator[pa.Table]:
    """Iterations of training or serving."""
    found = trace.evidence.steps
    counters: dict[int, Iterator[int]] = defaultdict(count)
    ordinals = [next(counters[process]) for process in found.process.tolist()]
    numbered = zip(found.markers, ordinals, strict=True)
    yield tables.Steps.SPEC.table(
        {
            "step_id": np.arange(found.start_ns.size),
            "name": [marker.name for marker in found.markers],
            "kind": [marker.kind for marker in found.markers],
            "index": [ordinal if marker.index is None else marker.index for marker, ordinal in numbered],
            **of_thread(trace.evidence.recording, found.thread),
            "start_ns": found.start_ns,
            "end_ns": found.end_ns,
            "batch_size": [marker.batch_size for marker in found.markers],
            "tokens": [marker.tokens for marker in found.markers],
            "compile_ns": trace.evidence.compiling.within(found.process, found.start_ns, found.end_ns),
        }
    )
