"""Iterations of training or serving, and which of them work belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.intervals import innermost, one_axis, parents
from tracekit.markers.base import ModuleMarker, StepMarker
from tracekit.recording import integers

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints
    from tracekit.calls import Calls
    from tracekit.decode import Decoded
    from tracekit.markers.base import Marker
    from tracekit.recording import Recording


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in the order of their starts; ``step_id`` is the row.

    Attributes:
        range_row: Row of the recording's ranges.
        start_ns: Start.
        end_ns: End.
        thread: Row of threads.
        process: Row of processes.
        says: What the step's text says; a step made from a root module's call has only a name.
    """

    range_row: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    process: Ints
    says: list[StepMarker]


def steps_of(recording: Recording, decoded: Decoded, calls: Calls) -> Steps:
    """The ranges that mark steps; for a process that has none, each outermost call of a root module.

    A backward pass is no step of its own, and a capture is none at all.
    """
    ranges = recording.ranges
    thread = integers(ranges, "thread")
    process = np.append(recording.threads.process, -1)[thread]
    marker = np.append(decoded.of_text, -1)[integers(ranges, "text")]
    same_thread = np.asarray(ranges.column("end_thread").is_null())
    marked = np.flatnonzero(decoded.rows(StepMarker)[marker] & same_thread)
    forward = np.array([not _backward(found) for found in decoded.markers], dtype=bool)
    roots = calls.range_row[
        (calls.parent < 0) & calls.known & forward[calls.marker] & ~calls.captured
    ]
    roots = roots[~np.isin(process[roots], np.unique(process[marked]))]
    rows = np.concatenate((marked, roots))
    start = integers(ranges, "start_ns")
    rows = rows[np.lexsort((rows, process[rows], start[rows]))]
    module_at = (
        dict(zip(calls.range_row.tolist(), calls.module.tolist(), strict=True))
        if roots.size
        else {}
    )
    says = [
        found
        if isinstance(found := decoded.markers[marker[row]], StepMarker)
        else StepMarker(calls.modules[module_at[row]].path)
        for row in rows.tolist()
    ]
    return Steps(
        rows, start[rows], integers(ranges, "end_ns")[rows], thread[rows], process[rows], says
    )


def _backward(marker: Marker) -> bool:
    return isinstance(marker, ModuleMarker) and marker.phase == "backward"


def step_at(steps: Steps, thread: Ints, process: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The step of every piece of host work, or -1.

    It is the innermost step open on the same thread. A thread that marks no steps itself (autograd's, say) works
    for the step open in its process, if steps of different threads never overlap there.

    Args:
        steps: The steps.
        thread: Thread of every piece.
        process: Process of every piece.
        start_ns: Start.
        end_ns: End.
    """
    own = _innermost_in(
        steps, np.arange(steps.start_ns.size), steps.thread, thread, start_ns, end_ns
    )
    lent = (
        np.flatnonzero(_without_overlap(steps)[steps.process])
        if steps.process.size
        else np.empty(0, np.int64)
    )
    marking = np.zeros(int(max(thread.max(initial=0), steps.thread.max(initial=0))) + 1, dtype=bool)
    marking[steps.thread] = True
    helper = np.flatnonzero(~marking[thread])
    if lent.size and helper.size:
        own[helper] = _innermost_in(
            steps, lent, steps.process, process[helper], start_ns[helper], end_ns[helper]
        )
    return own


def _innermost_in(
    steps: Steps, rows: Ints, line: Ints, at: Ints, start_ns: Ints, end_ns: Ints
) -> Ints:
    """The innermost of some steps on the same line (thread or process) that contains each piece."""
    if not rows.size or not at.size:
        return np.full(at.size, -1, dtype=np.int64)
    start, end, first, last = one_axis(
        [line[rows], line[rows], at, at],
        [steps.start_ns[rows], steps.end_ns[rows], start_ns, end_ns],
    )
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    found = innermost(start, end, parents(start, end)[0], first, last)
    return np.append(rows[order], -1)[found]


def _without_overlap(steps: Steps) -> Flags:
    """For every process whether steps of different threads are never open at once."""
    apart = np.ones(int(steps.process.max()) + 1, dtype=bool)
    for process in np.unique(steps.process).tolist():
        rows = np.flatnonzero(steps.process == process)
        if np.unique(steps.thread[rows]).size > 1:
            apart[process] = not _threads_overlap(steps, rows)
    return apart


def _threads_overlap(steps: Steps, rows: Ints) -> bool:
    reach: dict[int, int] = {}
    for row in rows.tolist():
        thread, start = int(steps.thread[row]), int(steps.start_ns[row])
        if any(start < end for other, end in reach.items() if other != thread):
            return True
        reach[thread] = max(reach.get(thread, start), int(steps.end_ns[row]))
    return False
