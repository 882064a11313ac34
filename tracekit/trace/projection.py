"""GPU projection of ranges: when the work that was launched inside a range ran on the device.

The semantics are NVIDIA's (``nvtx_gpu_proj_trace``): work is inside a range if the API call that launched it lies
within the range on the same thread, both ends inclusive; the projection goes from the first start to the last end;
a launch of many pieces of work (a graph) counts once. Unlike NVIDIA's, rows that merely carry a CUDA backtrace are not
counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays import groups, slices
from tracekit.arrays.columns import integers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.trace.evidence import Evidence


NEVER = np.iinfo(np.int64).min
_LATEST = np.iinfo(np.int64).max
#: API calls that launch work nest one or two deep in real programs.
_MOST_LAYERS = 64
_PIECE = 131_072


@dataclass(frozen=True, slots=True)
class Projection:
    """Device times of ranges.

    Attributes:
        start_ns: First start of the work; ``NEVER`` where nothing ran.
        end_ns: Last end of the work; ``NEVER`` where nothing ran.
        launches: How many launches put work on the device.
        left_out: How many launches nest too deeply and are ignored.
    """

    start_ns: Ints
    end_ns: Ints
    launches: Ints
    left_out: int = 0


def launch_extents(evidence: Evidence) -> tuple[Ints, Ints, Ints]:
    """The launches that put work on the device, and the first start and last end of their work."""
    launch, work = evidence.launched.launch, evidence.recording.work
    known = (launch >= 0) & evidence.recording.on_device
    chosen = slice(None) if known.all() else known
    launches = evidence.recording.launches.num_rows
    first = groups.minima(launch[chosen], integers(work, "start_ns")[chosen], launches)
    last = groups.maxima(launch[chosen], integers(work, "end_ns")[chosen], launches)
    rows = np.flatnonzero(last != NEVER)
    return (rows, first, last) if rows.size == first.size else (rows, first[rows], last[rows])


def range_projection(evidence: Evidence) -> Projection:
    """The projection of every range of the recording."""
    rows, first, last = launch_extents(evidence)
    axis = evidence.axis
    every = rows.size == axis.launch_start.size
    start = axis.launch_start if every else axis.launch_start[rows]
    end = axis.launch_end if every else axis.launch_end[rows]
    ranges = axis.range_start.size
    result = Projection(np.full(ranges, _LATEST), np.full(ranges, NEVER), np.zeros(ranges, np.int32))
    counted = 0
    for layer in _layers(end):
        _add_layer(result, axis, _Launches(start[layer], end[layer], first[layer], last[layer]))
        counted += start[layer].size
    result.launches[~axis.ends_here] = 0
    nothing = result.launches == 0
    result.start_ns[nothing] = NEVER
    result.end_ns[nothing] = NEVER
    return Projection(result.start_ns, result.end_ns, result.launches, int(rows.size) - counted)


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


def _add_layer(result: Projection, axis: ThreadAxis, layer: _Launches) -> None:
    first_of, last_of = slices.least_of(layer.first_ns), slices.greatest_of(layer.last_ns)
    for begin in range(0, axis.range_start.size, _PIECE):
        piece = slice(begin, begin + _PIECE)
        low = np.searchsorted(layer.start, axis.range_start[piece], side="left")
        high = np.searchsorted(layer.end, axis.range_end[piece], side="right")
        began, ended = result.start_ns[piece], result.end_ns[piece]
        np.minimum(began, first_of(low, high, _LATEST), out=began)
        np.maximum(ended, last_of(low, high, NEVER), out=ended)
        result.launches[piece] += np.maximum(high - low, 0).astype(np.int32)
