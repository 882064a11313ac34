"""Where to cut: each process by itself, at the beginning of calls, into stretches of about equally many rows.

Never inside a range that must not be cut, nor between a call and the empty second range that hooks leave behind it: so
only where something begins that holds further such ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arrays.types import Ints
    from tracekit.readers.stretches.survey import Process

BEFORE_ALL, AFTER_ALL = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Cuts:
    """Stretches, numbered from 0: those of one process in the order of time.

    Attributes:
        processes: Global ids of processes, ascending.
        first: For each the number of its first stretch; processes with few rows share one.
        times: For each when its second and later stretches begin.
    """

    processes: Ints
    first: Ints
    times: list[Ints]

    @property
    def stretches(self) -> int:
        """How many there are."""
        return max(
            (int(first) + times.size + 1 for first, times in zip(self.first, self.times, strict=True)), default=1
        )

    def at(self, process: Ints, time_ns: Ints) -> Ints:
        """The stretch of each time of a process; of a process that was not surveyed the first of all."""
        stretch = np.zeros(time_ns.size, dtype=np.int64)
        for number, first, times in zip(self.processes.tolist(), self.first.tolist(), self.times, strict=True):
            own = process == number
            stretch[own] = first + np.searchsorted(times, time_ns[own], side="right")
        return stretch

    def begin(self, process: int, stretch: int) -> int:
        """When the part of a process in some stretch begins; names of its domains and threads are in all."""
        row = int(np.searchsorted(self.processes, process))
        if row == self.processes.size or self.processes[row] != process or stretch <= self.first[row]:
            return BEFORE_ALL
        times = self.times[row][: stretch - int(self.first[row])]
        return int(times[-1]) if times.size else BEFORE_ALL

    def end(self, process: int, stretch: int) -> int:
        """When the part of a process in some stretch ends."""
        row = int(np.searchsorted(self.processes, process))
        if row == self.processes.size or self.processes[row] != process:
            return AFTER_ALL
        times = self.times[row][max(0, stretch - int(self.first[row])) :]
        return int(times[0]) if times.size else AFTER_ALL


def chosen(processes: Mapping[int, Process], most: int) -> Cuts:
    """Cuts what a survey has seen.

    Args:
        processes: What is known of each process, by its global id.
        most: About so many rows of ranges and calls shall be in a stretch.
    """
    numbers = sorted(processes)
    times = [_times(processes[number], most) for number in numbers]
    first, free, shared, room = [], 0, -1, 0
    for number, cut in zip(numbers, times, strict=True):
        rows = processes[number].rows
        if not cut.size and shared >= 0 and rows <= room:
            room -= rows
            first.append(shared)
            continue
        first.append(free)
        if not cut.size:
            shared, room = free, most - rows
        free += cut.size + 1
    return Cuts(np.array(numbers, dtype=np.int64), np.array(first, dtype=np.int64), times)


def _times(process: Process, most: int) -> Ints:
    """When the second and later stretches of a process begin."""
    wanted = -(-process.rows // most)
    places = process.covered.start[1:][process.covered.holds[1:]]
    if wanted <= 1 or not places.size:
        return np.empty(0, dtype=np.int64)
    sampled = np.sort(np.concatenate(process.sampled))
    at = sampled[np.arange(1, wanted) * sampled.size // wanted]
    place = np.searchsorted(places, at)
    return places[np.unique(place[place < places.size])]
