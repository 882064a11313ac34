"""Iterations among plain ranges: those whose texts count iterations, such as ``step 17``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import sums
from tracekit.arrays.intervals import parents

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording
    from tracekit.trace.plain.extents import Extents


class _Counting(NamedTuple):
    """Outermost ranges that count iterations, by thread and start.

    Attributes:
        row: Row of the recording's ranges.
        thread: Row of threads.
        name: Number of the name.
        number: Number of the iteration.
        lasting_ns: How long each lasted.
    """

    row: Rows
    thread: Ints
    name: Ints
    number: Ints
    lasting_ns: Ints


def iterations(recording: Recording, extents: Extents, name: Ints, number: Ints) -> Rows:
    """Which of some ranges are iterations: positions in the extents.

    Of ranges that count iterations inside each other the outermost counts. Where ranges of several names take turns
    within the same iteration, as ``load 3``, ``compute 3`` do, those of the name that takes longest count.

    Args:
        recording: The recording.
        extents: The ranges.
        name: For each of them the number of its name.
        number: For each of them the number of the iteration that its text counts, or -1.
    """
    at = np.flatnonzero(number >= 0)
    at = at[parents(extents.start[at], extents.end[at])[0] < 0]
    row = extents.row[at]
    start_ns, end_ns = (integers(recording.ranges, column)[row] for column in ("start_ns", "end_ns"))
    thread = integers(recording.ranges, "thread")[row]
    counting = _Counting(row, thread, name[at], number[at], end_ns - start_ns)
    return at[_leading(counting)]


def _leading(counting: _Counting) -> Flags:
    """Which of these are iterations, and not parts of one."""
    leading = np.ones(counting.row.size, dtype=bool)
    for thread in np.unique(counting.thread).tolist():
        rows = np.flatnonzero(counting.thread == thread)
        name, number = counting.name[rows], counting.number[rows]
        turns = name[1:] != name[:-1]
        within = turns & (number[1:] == number[:-1])
        if 2 * within.sum() >= turns.sum() > 0:
            lasting = sums(name, counting.lasting_ns[rows], int(name.max()) + 1)
            leading[rows] = name == np.argmax(lasting)
    return leading
