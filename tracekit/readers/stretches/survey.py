"""The first pass over a report: when ranges are open inside which it must not be cut, and where its rows are.

What it keeps grows neither with the rows nor with the length of the session.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.nsight import tables as nsight

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Flags, Ints
    from tracekit.readers.stretches.texts import Fixed

#: Of so many rows the time of one is kept.
_SAMPLED = 64
#: More places than these to cut one process are thinned out: the shortest gaps first.
_MOST_PLACES = 1 << 19
RANGES = (*nsight.PUSH_POP_RANGES, *nsight.START_END_RANGES)


class NotCuttable(Exception):  # noqa: N818
    """The report must be worked on as a whole; the message says what it holds, in words that follow *it has*."""


class Covered(NamedTuple):
    """Disjoint times in ascending order, in which some of the ranges that must not be cut are open.

    Attributes:
        start: When the first of these ranges begins.
        end: When the last one ends.
        head: When the first one ends, of those that begin together the longest.
        holds: Whether another one begins inside that.
    """

    start: Ints
    end: Ints
    head: Ints
    holds: Flags

    def joined(self, start: Ints, end: Ints) -> Covered:
        """With further ranges, in any order. Ranges that touch each other leave no place to cut."""
        if not start.size:
            return self
        starts, ends, head = (np.concatenate(pair) for pair in ((self.start, start), (self.end, end), (self.head, end)))
        holds = np.append(self.holds, np.zeros(start.size, dtype=bool))
        order = np.lexsort((-head, starts))
        starts, ends, head, holds = starts[order], ends[order], head[order], holds[order]
        gap = starts[1:] - np.maximum.accumulate(ends)[:-1]
        apart = gap > 0
        if np.count_nonzero(apart) > _MOST_PLACES:
            apart &= gap > np.partition(gap[apart], -_MOST_PLACES)[-_MOST_PLACES]
        first = np.flatnonzero(np.append(True, apart))
        inside = np.append(~apart & (starts[1:] < head[:-1]), False)
        return Covered(starts[first], np.maximum.reduceat(ends, first), head[first], (holds | inside)[first])


def nothing_covered() -> Covered:
    """No times."""
    none = np.empty(0, dtype=np.int64)
    return Covered(none, none, none, none.astype(bool))


@dataclass(slots=True)
class Process:
    """What is known of one process.

    Attributes:
        covered: When ranges are open that must not be cut.
        rows: How many rows of ranges and API calls it has.
        sampled: Times of some of them.
    """

    covered: Covered = field(default_factory=nothing_covered)
    rows: int = 0
    sampled: list[Ints] = field(default_factory=list)


class Survey:
    """What the first pass has seen so far, by the global id of the process."""

    def __init__(self, fixed: Fixed) -> None:
        self._fixed = fixed
        self.processes: defaultdict[int, Process] = defaultdict(Process)

    def add_ranges(self, rows: pa.Table) -> None:
        """Looks at some rows of NVTX_EVENTS.

        Raises:
            NotCuttable: If a range never ended: nothing tells locally when it did.
        """
        rows = rows.filter(np.isin(integers(rows, "eventType"), RANGES))
        if rows.column("end").null_count:
            raise NotCuttable("a range without an end")
        start, end, process = integers(rows, "start"), integers(rows, "end"), processes_of(rows, "globalTid")
        fixed = self._fixed.rows(rows)
        for number in np.unique(process).tolist():
            own = process == number
            self._count(number, start[own])
            held = own & fixed
            known = self.processes[number]
            known.covered = known.covered.joined(start[held], np.maximum(start, end)[held])

    def add_calls(self, rows: pa.Table) -> None:
        """Looks at some rows of the runtime table."""
        start, process = integers(rows, "start"), processes_of(rows, "globalTid")
        for number in np.unique(process).tolist():
            self._count(number, start[process == number])

    def _count(self, process: int, start: Ints) -> None:
        known = self.processes[process]
        known.rows += start.size
        known.sampled.append(start[::_SAMPLED].copy())


def processes_of(rows: pa.Table, column: str) -> Ints:
    """The global id of the process of every row; null counts as process 0."""
    encoded = rows.column(column).combine_chunks()
    values = np.append(np.asarray(encoded.dictionary, dtype=np.int64) & nsight.PROCESS_MASK, 0)
    taken: Ints = values[np.asarray(encoded.indices.fill_null(-1))]
    return taken


def has(rows: pa.Table, column: str, value: int) -> Flags:
    """Which rows have a value in a column that the table may lack."""
    if column not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=bool)
    return np.asarray(integers(rows, column) == value)
