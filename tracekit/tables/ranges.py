"""``ranges``: every NVTX range, ours or not, with NVIDIA's projection onto the GPU."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, parents
from tracekit.arrays.lookups import lookup
from tracekit.causes.reports import API_OVERLAP
from tracekit.recording.tables import RANGE_KINDS, RANGES
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables.base import category, or_null, pieces
from tracekit.trace.decoding import MARKER_KINDS
from tracekit.trace.projection import NEVER, range_projection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.attribution.base import Trace
    from tracekit.trace.evidence import Evidence


SPEC = TableSpec(
    "ranges",
    "One row per NVTX range (of a Chrome trace: per annotation and operator), sorted by (pid, tid, start_ns) with "
    "outer ranges first; in a report of several machines, one machine after the other.",
    (
        Column("range_id", pa.int64(), "Unique id: the row number, plus the report's first_id."),
        Column(
            "parent_range_id",
            pa.int64(),
            "Innermost push/pop range around it on its thread; null if there is none.",
            nullable=True,
        ),
        Column("depth", pa.int16(), "Number of push/pop ranges around it."),
        Column(
            "module_id",
            pa.int32(),
            "Module of the innermost call that this range is or lies in; null outside calls.",
            nullable=True,
        ),
        Column("domain", CATEGORY, "NVTX domain; null for the default domain.", nullable=True),
        Column("text", CATEGORY, "Text of the range; null if it has none.", nullable=True),
        Column(
            "marker",
            CATEGORY,
            "What the text marks: module, operator (of torch or PyProf), step, piece (of a compiled model), "
            "compiled_graph (a run of one), kernel_map (which modules its kernels serve) or unreadable; null for "
            "plain text.",
            nullable=True,
        ),
        Column("kind", CATEGORY, "push_pop or start_end."),
        Column("pid", pa.int32(), "Process id."),
        Column("rank", pa.int32(), "Rank of the process in its job; null if unknown.", nullable=True),
        Column("tid", pa.int32(), "Id of the thread on which it began."),
        Column(
            "end_tid", pa.int32(), "Id of the thread on which it ended; null if that is the same thread.", nullable=True
        ),
        *RANGES.chosen("start_ns", "end_ns", "open"),
        Column(
            "gpu_start_ns",
            pa.int64(),
            "Start of the first device work launched inside it; null if there is none.",
            nullable=True,
        ),
        Column(
            "gpu_end_ns",
            pa.int64(),
            "Latest end of device work launched inside it; null if there is none.",
            nullable=True,
        ),
        Column(
            "gpu_op_count",
            pa.int64(),
            "Number of launches inside it that put work on the device; a graph launch counts once.",
        ),
        *RANGES.chosen("payload_int", "payload_float", "payload_json"),
    ),
    sorted_by=("pid", "tid", "start_ns"),
)

_UNCHANGED = ("start_ns", "end_ns", "open", "payload_int", "payload_float", "payload_json")
_DEEPEST = np.iinfo(np.int16).max
_MARKERS = sorted(set(MARKER_KINDS.values()))


def build(trace: Trace) -> Iterator[pa.Table]:
    """All ranges, in the order of the recording."""
    evidence = trace.evidence
    recording = evidence.recording
    parent, depth = _nesting(evidence)
    module = _module_around(trace)
    projection = range_projection(evidence)
    recording.tally.add("launches", API_OVERLAP, projection.left_out)
    marker = _marker_of_text(evidence)
    for rows in pieces(np.arange(parent.size)):
        ranges = recording.ranges.slice(rows[0], rows.size) if rows.size else recording.ranges
        yield SPEC.table(
            _own_columns(trace, ranges, marker)
            | {
                "range_id": rows,
                "parent_range_id": or_null(parent[rows]),
                "depth": np.minimum(depth[rows], _DEEPEST).astype(np.int16),
                "module_id": or_null(module[rows]),
                "gpu_start_ns": or_null(projection.start_ns[rows], NEVER),
                "gpu_end_ns": or_null(projection.end_ns[rows], NEVER),
                "gpu_op_count": projection.launches[rows],
            }
        )


def _marker_of_text(evidence: Evidence) -> Ints:
    """For every text what it marks, as a position in ``_MARKERS``, or -1; one more entry for ranges without a text."""
    decoded = evidence.decoded
    kinds = {kind: _MARKERS.index(name) for kind, name in MARKER_KINDS.items()}
    of_marker = np.array([*map(kinds.get, map(type, decoded.markers), repeat(-1)), -1])
    marker = of_marker[np.append(decoded.of_text, -1)]
    return np.where(evidence.operators.of_text >= 0, _MARKERS.index("operator"), marker)


def _own_columns(trace: Trace, ranges: pa.Table, marker: Ints) -> dict[str, object]:
    """Columns from the range itself."""
    recording = trace.evidence.recording
    thread, text = (integers(ranges, column).astype(np.intp) for column in ("thread", "text"))
    unchanged: dict[str, object] = {name: ranges.column(name) for name in _UNCHANGED}
    return unchanged | {
        "domain": category(integers(ranges, "domain"), recording.domains),
        "text": category(text, recording.texts),
        "marker": category(marker.take(text), _MARKERS),
        "kind": category(integers(ranges, "kind"), RANGE_KINDS),
        "pid": recording.threads.pid[thread].astype(np.int32),
        "rank": or_null(recording.process_rank[recording.threads.process[thread]]),
        "tid": recording.threads.tid[thread].astype(np.int32),
        "end_tid": or_null(lookup(recording.threads.tid, integers(ranges, "end_thread"))).cast(pa.int32()),
    }


def _module_around(trace: Trace) -> Rows:
    """The module of the innermost call that is or contains each range, or -1."""
    evidence = trace.evidence
    calls, axis = evidence.calls, evidence.axis
    marked = np.flatnonzero(~calls.unmarked)
    start, end = calls.start[marked], calls.end[marked]
    parent = calls.parent[marked] if marked.size == calls.parent.size else parents(start, end)[0]
    around = lookup(marked, innermost(start, end, parent, axis.range_start, axis.range_end))
    around[~axis.ends_here] = -1
    own = np.flatnonzero(calls.known & ~calls.unmarked)
    around[calls.range_row[own]] = own
    return lookup(calls.module, around)


def _nesting(evidence: Evidence) -> tuple[Ints, Ints]:
    """The push/pop range around each range, or -1, and how many there are around it."""
    axis, nest = evidence.axis, evidence.nesting
    if nest.rows.size == axis.range_start.size:
        return nest.parent, nest.depth
    parent = np.full(axis.range_start.size, -1, dtype=np.int32)
    depth = np.zeros(parent.size, dtype=np.int32)
    parent[nest.rows], depth[nest.rows] = lookup(nest.rows, nest.parent), nest.depth
    rest = nest.others(axis)
    if rest.size and nest.rows.size:
        start, end = axis.range_start[nest.rows], axis.range_end[nest.rows]
        around = innermost(start, end, nest.parent, axis.range_start[rest], axis.range_end[rest])
        parent[rest] = lookup(nest.rows, around)
        depth[rest] = np.where(around >= 0, lookup(nest.depth, around) + 1, 0)
    return parent, depth
