"""``ranges``: every NVTX range, ours or not, with NVIDIA's projection onto the GPU (``nvtx_gpu_proj_trace``).

Work is inside a range if the API call that launched it lies within the range on the same thread, both ends inclusive;
the projection goes from the first start to the last end; a launch of many kernels (a graph) counts once. Unlike
NVIDIA's, rows that merely carry a CUDA backtrace are not counted twice.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays import groups, slices
from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import innermost, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.attribution.base import Trace
from tracekit.causes import API_OVERLAP
from tracekit.markers.phases import PHASES
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import RANGE_KINDS, Ranges
from tracekit.schema import tables
from tracekit.tables.base import category, of_thread, or_null, runs_of
from tracekit.trace.decoding import MARKER_KINDS
from tracekit.trace.evidence import Evidence

SPEC = tables.Ranges.SPEC

_UNCHANGED = ("start_ns", "end_ns", "open", "payload_int", "payload_float", "payload_json")
_DEEPEST = np.iinfo(np.int16).max
_MARKERS = sorted(set(MARKER_KINDS.values()))
_NEVER, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def build(trace: Trace) -> Iterator[pa.Table]:
    """All ranges, in the order of the recording."""
    evidence, recording = trace.evidence, trace.evidence.recording
    parent, depth = _nesting(evidence)
    module = _module_around(trace)
    projection, left_out = _projection(evidence)
    recording.counters.add("launches", API_OVERLAP, left_out)
    marker, texts = _marker_of_text(evidence), pa.array(recording.texts, pa.large_string())
    for rows in runs_of(parent.size):
        yield SPEC.table(
            _own_columns(trace, recording.ranges.cut(rows), marker, texts)
            | {
                "range_id": np.arange(rows.start, rows.stop),
                "parent_range_id": or_null(parent[rows]),
                "depth": np.minimum(depth[rows], _DEEPEST).astype(np.int16),
                "module_id": or_null(module[rows]),
                "gpu_start_ns": or_null(projection.start_ns[rows], _NEVER),
                "gpu_end_ns": or_null(projection.end_ns[rows], _NEVER),
                "gpu_op_count": projection.launches[rows],
            }
        )


def _marker_of_text(evidence: Evidence) -> Ints:
    decoded = evidence.decoded
    kinds = {kind: _MARKERS.index(name) for kind, name in MARKER_KINDS.items()}
    of_bare = np.array([*map(kinds.get, decoded.kinds, repeat(-1)), -1])[decoded.kind]
    marker = of_bare[decoded.canonical_marker[np.append(decoded.of_text, -1)]]
    return np.where(evidence.operators.of_text >= 0, _MARKERS.index("operator"), marker)


def _own_columns(trace: Trace, ranges: Ranges, marker: Ints, texts: pa.Array) -> dict[str, object]:
    recording = trace.evidence.recording
    text = ranges.text.astype(np.intp)
    unchanged: dict[str, object] = {name: getattr(ranges, name) for name in _UNCHANGED}
    return unchanged | {
        "domain": category(ranges.domain, recording.domains),
        "text": category(text, texts),
        "marker": category(marker.take(text), _MARKERS),
        "phase": category(trace.evidence.phased.of_text.take(text), PHASES),
        "kind": category(ranges.kind, RANGE_KINDS),
        **of_thread(recording, ranges.thread.astype(np.intp)),
        "end_tid": or_null(lookup(recording.threads.tid, ranges.end_thread)).cast(pa.int32()),
    }


def _module_around(trace: Trace) -> Rows:
    evidence = trace.evidence
    calls, axis = evidence.calls, evidence.axis
    marked = np.flatnonzero(~calls.unmarked)
    start, end = calls.start[marked], calls.end[marked]
    parent = calls.parent[marked] if marked.size == calls.parent.size else parents(start, end)[0]
    around = np.full(axis.range_start.size, -1, dtype=np.int32)
    own = np.flatnonzero(calls.known & ~calls.unmarked)
    around[calls.last_range[own]] = around[calls.range_row[own]] = own
    others = np.flatnonzero((around < 0) & axis.ends_here)
    around[others] = lookup(marked, innermost(start, end, parent, axis.range_start[others], axis.range_end[others]))
    return lookup(calls.module, around)


def _nesting(evidence: Evidence) -> tuple[Ints, Ints]:
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


#: API calls that launch work nest one or two deep in real programs.
_MOST_LAYERS = 64
_PIECE = 131_072


class _Projection(NamedTuple):
    """First start and last end of the work of each range (``_NEVER`` where nothing ran), and how many launches."""

    start_ns: Ints
    end_ns: Ints
    launches: Ints


def _projection(evidence: Evidence) -> tuple[_Projection, int]:
    """The projection of every range; and how many launches nest too deeply and are ignored."""
    launch, work, axis = evidence.launched.launch, evidence.recording.work, evidence.axis
    on_device = (launch >= 0) & evidence.recording.on_device
    chosen = slice(None) if on_device.all() else on_device
    first = groups.minima(launch[chosen], work.start_ns[chosen], axis.launch_start.size)
    last = groups.maxima(launch[chosen], work.end_ns[chosen], axis.launch_start.size)
    useful = last != _NEVER
    launches = _Launches(axis.launch_start, axis.launch_end, first, last)
    if not useful.all():
        launches = launches.take(useful)
    ranges = axis.range_start.size
    result = _Projection(np.full(ranges, _LATEST), np.full(ranges, _NEVER), np.zeros(ranges, np.int32))
    left_out = launches.end.size
    for layer in _layers(launches.end):
        own = launches.take(layer)
        _add_layer(result, axis, own)
        left_out -= own.end.size
    result.launches[~axis.ends_here] = 0
    nothing = result.launches == 0
    result.start_ns[nothing] = result.end_ns[nothing] = _NEVER
    return result, left_out


def _layers(end: Ints) -> Iterator[Rows | slice]:
    """Splits API calls, sorted by start, into layers: in each, the order of starts is also the order of ends.

    Of API calls around API calls, the innermost form the first layer. Calls that nest too deeply are in no layer.
    """
    if bool((end[1:] >= end[:-1]).all()):
        yield slice(None)
        return
    pending = np.arange(end.size)
    for _ in range(_MOST_LAYERS):
        lowest_later = np.minimum.accumulate(end[pending][::-1])[::-1]
        layer = end[pending] <= lowest_later
        yield pending[layer]
        pending = pending[~layer]
        if not pending.size:
            return


class _Launches(NamedTuple):
    """API calls, by start and by end: their extent on the axis, and the first start and last end of their work."""

    start: Ints
    end: Ints
    first_ns: Ints
    last_ns: Ints

    def take(self, rows: Rows | Flags | slice) -> "_Launches":
        return _Launches(*(column[rows] for column in self))


def _add_layer(result: _Projection, axis: ThreadAxis, layer: _Launches) -> None:
    first_of, last_of = slices.least_of(layer.first_ns), slices.greatest_of(layer.last_ns)
    for begin in range(0, axis.range_start.size, _PIECE):
        piece = slice(begin, begin + _PIECE)
        low = np.searchsorted(layer.start, axis.range_start[piece], side="left")
        high = np.searchsorted(layer.end, axis.range_end[piece], side="right")
        began, ended = result.start_ns[piece], result.end_ns[piece]
        np.minimum(began, first_of(low, high, _LATEST), out=began)
        np.maximum(ended, last_of(low, high, _NEVER), out=ended)
        result.launches[piece] += np.maximum(high - low, 0).astype(np.int32)
