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

from tracekit.arrays.columns import integers
from tracekit.arrays.slices import maxima, minima

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.recording.axis import Timeline
    from tracekit.trace.evidence import Evidence


NEVER = np.iinfo(np.int64).min
_LATEST = np.iinfo(np.int64).max
#: API calls that launch work nest one or two deep; more is no real program.
_MOST_LAYERS = 64
_PIECE = 131_072


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
    launch, work = evidence.launched.launch, evidence.recording.work
    known = (launch >= 0) & evidence.recording.on_device
    started = slice(None) if known.all() else known
    first = np.full(evidence.recording.launches.num_rows, _LATEST, dtype=np.int64)
    last = np.full(first.size, NEVER, dtype=np.int64)
    np.minimum.at(first, launch[started], integers(work, "start_ns")[started])
    np.maximum.at(last, launch[started], integers(work, "end_ns")[started])
    rows = np.flatnonzero(last != NEVER)
    return (rows, first, last) if rows.size == first.size else (rows, first[rows], last[rows])


def range_projection(evidence: Evidence) -> Projection:
    """The projection of every range of the recording."""
    rows, first, last = launch_extents(evidence)
    line = evidence.line
    whole = rows.size == line.launch_start.size
    start = line.launch_start if whole else line.launch_start[rows]
    end = line.launch_end if whole else line.launch_end[rows]
    ranges = line.range_start.size
    result = Projection(np.full(ranges, _LATEST), np.full(ranges, NEVER), np.zeros(ranges, np.int32))
    taken = 0
    for at in _layers(end):
        _add_layer(result, line, (start[at], end[at], first[at], last[at]))
        taken += start[at].size
    result.launches[~line.ends_here] = 0
    nothing = result.launches == 0
    result.start_ns[nothing] = NEVER
    result.end_ns[nothing] = NEVER
    return Projection(result.start_ns, result.end_ns, result.launches, int(rows.size) - taken)


def _layers(end: Ints) -> Iterator[Rows | slice]:
    """API calls, sorted by start, in layers in each of which the order of starts is the order of ends.

    Of API calls around API calls, the innermost form the first layer. What nests too deeply is in none.
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


def _add_layer(result: Projection, line: Timeline, layer: tuple[Ints, Ints, Ints, Ints]) -> None:
    start, end, first, last = layer
    for begin in range(0, line.range_start.size, _PIECE):
        piece = slice(begin, begin + _PIECE)
        low = np.searchsorted(start, line.range_start[piece], side="left")
        high = np.searchsorted(end, line.range_end[piece], side="right")
        began, ended = result.start_ns[piece], result.end_ns[piece]
        np.minimum(began, minima(first, low, high, _LATEST), out=began)
        np.maximum(ended, maxima(last, low, high, NEVER), out=ended)
        result.launches[piece] += np.maximum(high - low, 0).astype(np.int32)
