"""Submissions: launches that hand over work, to the device or, while a graph capture is open, to a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.graphs.api_calls import GRAPH_LAUNCH, is_batch, makes_node
from tracekit.graphs.windows import NOWHERE, outermost

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording


class Submissions(NamedTuple):
    """Launches that hand over work, in the order of the axis; of calls around calls the outermost alone.

    Attributes:
        row: Row of the recording's launches.
        start: Start on the axis.
        end: End on the axis.
        process: Row of processes.
        role: What the call becomes when captured: ``api_calls.KERNEL_LAUNCH``, ….
        worked: Whether it, or a call inside it, put work on the device.
        batch: Whether one call becomes several nodes.
    """

    row: Rows
    start: Ints
    end: Ints
    process: Rows
    role: Ints
    worked: Flags
    batch: Flags

    @property
    def silent(self) -> Flags:
        """Which may have been captured: they can become nodes, and put no work on the device."""
        return makes_node(self.role) & ~self.worked

    def at(self, time: Ints) -> Rows:
        """The submission that was under way at each time, or -1."""
        row = np.searchsorted(self.start, time, side="right") - 1
        row[(row < 0) | (np.append(self.end, NOWHERE)[row] < time)] = -1
        return row


def no_submissions() -> Submissions:
    """No submissions: they are not looked for in a recording without CUDA graphs."""
    times, rows, flags = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0, dtype=bool)
    return Submissions(rows, times, times, rows, rows, flags, flags)


def submissions_of(recording: Recording, axis: ThreadAxis, role: Ints, works: Flags) -> Submissions:
    """Finds the launches that hand over work.

    Args:
        recording: The recording.
        axis: Its threads on one axis.
        role: Role of every launch.
        works: Which launches put work on the device.
    """
    row = outermost(axis, np.flatnonzero(works | makes_node(role) | (role == GRAPH_LAUNCH)))
    return Submissions(
        row=row,
        start=axis.launch_start[row],
        end=axis.launch_end[row],
        process=recording.threads.process[integers(recording.launches, "thread")[row]],
        role=role[row],
        worked=_with_work(axis, row, works),
        batch=is_batch(recording, row),
    )


def _with_work(axis: ThreadAxis, outer: Rows, works: Flags) -> Flags:
    """Which of some calls put work on the device, they themselves or a call inside them."""
    worked = np.zeros(outer.size, dtype=bool)
    if outer.size:
        start = axis.launch_start[np.flatnonzero(works)]
        worked[np.searchsorted(axis.launch_start[outer], start, side="right") - 1] = True
    return worked
