"""``ranges``: every NVTX range, ours or not, with NVIDIA's projection onto the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.coverage import API_OVERLAP
from tracekit.decode import MARKER_KINDS
from tracekit.intervals import depths, innermost, parents
from tracekit.projection import NEVER, range_projection
from tracekit.recording import PUSH_POP, RANGE_KINDS, integers
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables.base import category, lookup, or_null

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.trace import Evidence, Trace

    Ints = NDArray[np.int64]

SPEC = TableSpec(
    "ranges",
    "One row per NVTX range, sorted by (pid, tid, start_ns, -end_ns).",
    (
        Column("range_id", pa.int64(), "The row's number."),
        Column("parent_range_id", pa.int64(), "Tightest push/pop range around it on its thread.", nullable=True),
        Column("depth", pa.int16(), "How many push/pop ranges are around it."),
        Column("domain", CATEGORY, "NVTX domain; null for the default one.", nullable=True),
        Column("text", CATEGORY, "Its text.", nullable=True),
        Column("marker", CATEGORY, "What the text was understood as: module, operator, step, unreadable.", nullable=True),
        Column("kind", CATEGORY, "push_pop or start_end."),
        Column("pid", pa.int32(), "Process."),
        Column("tid", pa.int32(), "Thread on which it began."),
        Column("end_tid", pa.int32(), "Thread on which it ended, if that is another.", nullable=True),
        Column("start_ns", pa.int64(), "When it began."),
        Column("end_ns", pa.int64(), "When it ended."),
        Column("open", pa.bool_(), "Whether it had no end and was closed at the last time seen on its thread."),
        Column("gpu_start_ns", pa.int64(), "First start of work launched inside.", nullable=True),
        Column("gpu_end_ns", pa.int64(), "Last end of work launched inside.", nullable=True),
        Column("gpu_op_count", pa.int64(), "Launches inside that put work on the device; a graph counts once."),
        Column("payload_int", pa.int64(), "Integer payload; unsigned ones in two's complement.", nullable=True),
        Column("payload_float", pa.float64(), "Floating-point payload.", nullable=True),
        Column("payload_json", pa.string(), "Structured payload as JSON.", nullable=True),
    ),
    sorted_by=("pid", "tid", "start_ns"),
)

_DEEPEST = np.iinfo(np.int16).max


def build(trace: Trace) -> pa.Table:
    """All ranges, in the order of the recording."""
    evidence = trace.evidence
    recording, ranges = evidence.recording, evidence.recording.ranges
    thread, text = integers(ranges, "thread"), integers(ranges, "text")
    end_thread = integers(ranges, "end_thread")
    parent, depth = _nesting(evidence)
    projection = range_projection(evidence)
    recording.tally.add("launches", API_OVERLAP, projection.left_out)
    kinds = [MARKER_KINDS[type(marker)] for marker in evidence.decoded.markers]
    names = sorted(set(MARKER_KINDS.values()))
    marker_kind = np.array([*map(names.index, kinds), -1], dtype=np.int64)
    return SPEC.table({
        "range_id": np.arange(thread.size),
        "parent_range_id": or_null(parent),
        "depth": np.minimum(depth, _DEEPEST).astype(np.int16),
        "domain": category(integers(ranges, "domain"), recording.domains),
        "text": category(text, recording.texts),
        "marker": category(marker_kind[lookup(evidence.decoded.of_text, text)], names),
        "kind": category(integers(ranges, "kind"), RANGE_KINDS),
        "pid": recording.threads.pid[thread].astype(np.int32),
        "tid": recording.threads.tid[thread].astype(np.int32),
        "end_tid": or_null(lookup(recording.threads.tid, end_thread)).cast(pa.int32()),
        "start_ns": ranges.column("start_ns"),
        "end_ns": ranges.column("end_ns"),
        "open": ranges.column("open"),
        "gpu_start_ns": or_null(projection.start_ns, NEVER),
        "gpu_end_ns": or_null(projection.end_ns, NEVER),
        "gpu_op_count": projection.launches,
        "payload_int": ranges.column("payload_int"),
        "payload_float": ranges.column("payload_float"),
        "payload_json": ranges.column("payload_json"),
    })


def _nesting(evidence: Evidence) -> tuple[Ints, Ints]:
    """The push/pop range around each range, or -1, and how many of them there are."""
    line, ranges = evidence.line, evidence.recording.ranges
    crosses = ~np.asarray(ranges.column("end_thread").is_null())
    pushed = (integers(ranges, "kind") == PUSH_POP) & ~crosses
    rows = np.flatnonzero(pushed)
    start, end = line.range_start[rows], line.range_end[rows]
    above = parents(start, end)
    parent = np.full(pushed.size, -1, dtype=np.int64)
    depth = np.zeros(pushed.size, dtype=np.int64)
    parent[rows] = np.append(rows, -1)[above]
    depth[rows] = depths(above)
    loose = np.flatnonzero(~pushed & ~crosses)
    if loose.size and rows.size:
        around = innermost(start, end, above, line.range_start[loose], line.range_end[loose])
        parent[loose] = np.append(rows, -1)[around]
        depth[loose] = np.where(around >= 0, lookup(depth[rows], around) + 1, 0)
    return parent, depth


