"""Operators that ran on a CPU, as work: its own thread started each one by running it, so it is its own launch."""

from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import nesting_order, one_axis, parents
from tracekit.arrays.types import Ints
from tracekit.recording.tables import CPU_OP, Launches, Work, nested


class Operators(NamedTuple):
    """Operators as work and as launches, and the time of each that was spent in operators it called."""

    work: Work
    launches: Launches
    inside_ns: Ints

    def with_launches(self, launches: Launches) -> Launches:
        """API calls and operators together, in the order of launches."""
        if not len(self.launches):
            return launches
        return nested(Launches.concat([launches, self.launches]))

    def with_work(self, work: Work) -> tuple[Work, Ints | None]:
        """Device work and operators together, and the time that each piece spent in others."""
        if not len(self.work):
            return work, None
        return Work.concat([work, self.work]), np.concatenate((np.zeros(len(work), np.int64), self.inside_ns))


def no_operators() -> Operators:
    """A recording without operators."""
    return Operators(Work.empty(), Launches.empty(), np.empty(0, np.int64))


def operators_as_work(start: Ints, end: Ints, thread: Ints, process: Ints, name: Ints) -> Operators:
    """Operators as work that launched itself; the last three are rows of threads, processes and names."""
    # CUDA's correlation ids are not negative, and -1 is null.
    both = {"start_ns": start, "end_ns": end, "correlation_id": -2 - np.arange(start.size)}
    kind = np.full(start.size, CPU_OP, np.int8)
    work = Work.of(**both, kind=kind, process=process, name=name, full_name=name)
    return Operators(work, Launches.of(**both, thread=thread), _inside(start, end, thread))


def _inside(start: Ints, end: Ints, thread: Ints) -> Ints:
    first, last = one_axis([thread, thread], [start, end])
    order = nesting_order(first, last)
    parent, _ = parents(first[order], last[order])
    inside = np.zeros(start.size, np.int64)
    within = np.flatnonzero(parent >= 0)
    np.add.at(inside, order[parent[within]], (end - start)[order[within]])
    return np.asarray(np.minimum(inside, end - start))
