"""``allocations``: memory that allocators handed out and took back, and until when each piece was held."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Ints
from tracekit.attribution.base import Trace
from tracekit.recording.tables import Allocations
from tracekit.schema import CATEGORY, Column, Nullable, TableSpec
from tracekit.tables.base import call_around, category, module_paths, or_null, pieces
from tracekit.trace.steps.steps import step_at

SPEC = TableSpec(
    "allocations",
    "One row per piece of memory that an allocator handed out or took back, sorted by start_ns: torch's, of GPUs, or "
    "of the CPU in a run without one (profile_memory of torch.profiler); or CUDA's, of GPUs (--cuda-memory-usage of "
    "nsys). The sum of bytes of a process and device so far is how much more it holds than as the recording began. "
    "Held at a time is what was handed out until then and has no end_ns until then. Empty if the report does not "
    "record memory.",
    (
        Column("start_ns", pa.int64(), "When, in ns since the start of the session."),
        Nullable(
            "end_ns",
            pa.int64(),
            "When the piece that is handed out here was taken back; null if it was not in the recording, and for a "
            "piece that is taken back here.",
        ),
        Column("bytes", pa.int64(), "How much; negative if it was taken back."),
        Nullable(
            "total_bytes",
            pa.int64(),
            "What the allocator then has handed out in all on the device, also before the recording; null if the "
            "report does not say it.",
        ),
        Nullable("device", pa.int32(), "Number of the GPU, as in the report; null for memory of the host."),
        Column("pid", pa.int32(), "Process id."),
        Nullable("rank", pa.int32(), "Rank of the process in its job; null if unknown."),
        Nullable("tid", pa.int32(), "Thread id; null for a thread with neither ranges nor API calls."),
        Nullable("module_id", pa.int32(), "Module of the innermost call around it; null outside calls."),
        Nullable("module", CATEGORY, "Path of that module."),
        Nullable("call_id", pa.int64(), "That call of the module."),
        Nullable("step_id", pa.int64(), "Step it happened in; null outside steps."),
    ),
    sorted_by=("start_ns",),
)
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
