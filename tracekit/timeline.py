"""Ranges and launches of all threads on one axis, so that nesting is asked for once and not thread by thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.intervals import one_axis
from tracekit.recording import integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.recording import Recording

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Starts and ends on an axis on which threads lie end to end.

    Attributes:
        range_start: Starts of ranges, in their order: sorted by (start, -end).
        range_end: Their ends.
        launch_start: Starts of launches, in their order: sorted by (start, -end).
        launch_end: Their ends.
    """

    range_start: Ints
    range_end: Ints
    launch_start: Ints
    launch_end: Ints


def timeline(recording: Recording) -> Timeline:
    """Lays a recording's threads end to end."""
    on, launched_on = integers(recording.ranges, "thread"), integers(recording.launches, "thread")
    times = [
        integers(table, column)
        for table in (recording.ranges, recording.launches)
        for column in ("start_ns", "end_ns")
    ]
    return Timeline(*one_axis([on, on, launched_on, launched_on], times))
