"""Host intervals projected onto the device: what the work that was launched inside them did there.

The semantics are NVIDIA's (``nvtx_gpu_proj_trace``): work is inside a range if the API call that launched it lies
within the range on the same thread, both ends inclusive; the projection goes from the first start to the last end;
a launch of many pieces of work (a graph) counts once. Unlike NVIDIA's, rows that merely carry a CUDA backtrace do
not count twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.recording import integers
from tracekit.segments import maxima, minima

if TYPE_CHECKING:
    from tracekit.arrays import Ints
    from tracekit.trace import Evidence


NEVER = np.iinfo(np.int64).min
_LATEST = np.iinfo(np.int64).max
#: API calls that launch work nest one or two deep; more is no real program.
_MOST_LAYERS = 64


@dataclass(frozen=True, slots=True)
class Projection:
    """Device times of some intervals; ``NEVER`` where nothing ran.

    Attributes:
        start_ns: First start.
        end_ns: Last end.
        launches: How many launches put work on the device.
        left_out: Launches that could not be taken into account.
    """

    start_ns: Ints
    end_ns: Ints
    launches: Ints
    left_out: int = 0


def launch_extents(evidence: Evidence) -> tuple[Ints, Ints, Ints]:
    """The launches that put work on the device, and the first start and last end of their work."""
    launch = evidence.launched.launch
    started = np.flatnonzero(launch >= 0)
    first = np.full(evidence.recording.launches.num_rows, _LATEST, dtype=np.int64)
    last = np.full(first.size, NEVER, dtype=np.int64)
    np.minimum.at(first, launch[started], integers(evidence.recording.work, "start_ns")[started])
    np.maximum.at(last, launch[started], integers(evidence.recording.work, "end_ns")[started])
    rows = np.flatnonzero(last != NEVER)
    return rows, first[rows], last[rows]


def range_projection(evidence: Evidence) -> Projection:
    """The projection of every range of the recording."""
    rows, first, last = launch_extents(evidence)
    line = evidence.line
    start, end = line.launch_start[rows], line.launch_end[rows]
    ranges = line.range_start.size
    result = Projection(
        np.full(ranges, _LATEST), np.full(ranges, NEVER), np.zeros(ranges, np.int32)
    )
    pending = np.arange(rows.size)
    for _ in range(_MOST_LAYERS):
        if not pending.size:
            break
        # Of API calls around API calls, the innermost form a layer in which order of start is order of end.
        layer = end[pending] <= np.minimum.accumulate(end[pending][::-1])[::-1]
        at = pending[layer]
        _add_layer(
            result, line.range_start, line.range_end, (start[at], end[at], first[at], last[at])
        )
        pending = pending[~layer]
    nothing = result.launches == 0
    result.start_ns[nothing] = NEVER
    crosses = ~np.asarray(evidence.recording.ranges.column("end_thread").is_null())
    for values, none in ((result.start_ns, NEVER), (result.end_ns, NEVER), (result.launches, 0)):
        values[crosses] = none
    return Projection(result.start_ns, result.end_ns, result.launches, int(pending.size))


def _add_layer(
    result: Projection, range_start: Ints, range_end: Ints, layer: tuple[Ints, Ints, Ints, Ints]
) -> None:
    start, end, first, last = layer
    low = np.searchsorted(start, range_start, side="left")
    high = np.searchsorted(end, range_end, side="right")
    np.minimum(result.start_ns, minima(first, low, high, _LATEST), out=result.start_ns)
    np.maximum(result.end_ns, maxima(last, low, high, NEVER), out=result.end_ns)
    result.launches[:] += np.maximum(high - low, 0).astype(np.int32)
