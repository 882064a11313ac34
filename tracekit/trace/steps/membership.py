"""The step that each piece of host work belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import innermost, one_axis, parents

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.trace.steps.steps import Steps


def step_at(steps: Steps, thread: Ints, process: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The step of every piece of host work, or -1.

    It is the innermost step open on the same thread. A thread that marks no steps itself (autograd's, say) works
    for the step open in its process, if steps of different threads never overlap there.

    Args:
        steps: The steps.
        thread: Row of threads of every piece.
        process: Row of processes of every piece.
        start_ns: When it began.
        end_ns: When it ended.
    """
    own = _innermost_in(steps, np.arange(steps.start_ns.size), steps.thread, thread, start_ns, end_ns)
    shared = np.flatnonzero(_without_overlap(steps)[steps.process]) if steps.process.size else np.empty(0, np.int64)
    apart = np.union1d(steps.thread, steps.apart)
    helping = np.flatnonzero(~np.isin(thread, apart))
    if shared.size and helping.size:
        own[helping] = _innermost_in(steps, shared, steps.process, process[helping], start_ns[helping], end_ns[helping])
    return own


def _innermost_in(steps: Steps, rows: Ints, step_line: Ints, line: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The innermost of some steps that contains each piece and is on the same line (thread or process)."""
    if not rows.size or not line.size:
        return np.full(line.size, -1, dtype=np.int64)
    start, end, first, last = one_axis(
        [step_line[rows], step_line[rows], line, line],
        [steps.start_ns[rows], steps.end_ns[rows], start_ns, end_ns],
    )
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    return np.append(rows[order], -1)[innermost(start, end, parents(start, end)[0], first, last)]


def _without_overlap(steps: Steps) -> Flags:
    """For every process whether steps of different threads are never open at once."""
    without = np.ones(int(steps.process.max()) + 1, dtype=bool)
    for process in np.unique(steps.process).tolist():
        rows = np.flatnonzero(steps.process == process)
        if np.unique(steps.thread[rows]).size > 1:
            without[process] = not _threads_overlap(steps, rows)
    return without


def _threads_overlap(steps: Steps, rows: Ints) -> bool:
    reach: dict[int, int] = {}
    for row in rows.tolist():
        thread, start = int(steps.thread[row]), int(steps.start_ns[row])
        if any(start < end for other, end in reach.items() if other != thread):
            return True
        reach[thread] = max(reach.get(thread, start), int(steps.end_ns[row]))
    return False
