"""Host threads that take turns, such as the one that calls ``backward`` and the one that runs it.

Reports do not tell what makes a thread go on. But threads whose calls never overlap, and alternate far less often than
they would by chance, run one program: what the one does next depends on what the other did last.
"""

from __future__ import annotations

import numpy as np

from tracekit.arrays.types import Ints, Rows

#: The share of calls that may overlap, and how many standard deviations fewer runs there must be than by chance.
_OVERLAPPING, _FEWER = 0.01, 3


def previous_calls(process: Ints, thread: Rows, start: Ints, end: Ints) -> Rows:
    """For each call the row of the one before it on its thread, or on threads that take turns with it; or -1.

    Calls are sorted by thread and start, and those of a thread do not overlap.
    """
    program = _programs(process, thread, start, end)
    order = np.lexsort((np.arange(start.size), end, program))
    previous = np.full(start.size, -1)
    same = program[order[1:]] == program[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _programs(process: Ints, thread: Rows, start: Ints, end: Ints) -> Rows:
    """The thread of each call; of threads that take turns, the busiest."""
    program = thread.copy()
    busiest: dict[int, int] = {}
    numbers, counts = np.unique(thread, return_counts=True)
    for number in numbers[np.argsort(-counts, kind="stable")].tolist():
        own = np.flatnonzero(thread == number)
        first = busiest.setdefault(int(process[own[0]]), number)
        others = np.flatnonzero(program == first)
        if number != first and _take_turns((start[own], end[own]), (start[others], end[others])):
            program[own] = first
    return program


def _take_turns(own: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> bool:
    order = np.argsort(others[0], kind="stable")
    start, end = others[0][order], others[1][order]
    place = np.searchsorted(start, own[0])
    # With the one of the others that started last before them, or with the next.
    overlaps = (place > 0) & (end[place - 1] > own[0])
    overlaps |= (place < start.size) & (start[np.minimum(place, start.size - 1)] < own[1])
    if overlaps.mean() > _OVERLAPPING:
        return False
    one, other = own[0].size, int(place[-1] - place[0])
    runs = 2 * np.unique(place).size - 1
    # Wald and Wolfowitz: of two kinds in random order.
    expected = 1 + 2 * one * other / (one + other)
    variance = (expected - 1) * (expected - 2) / max(1, one + other - 1)
    return bool(runs < expected - _FEWER * max(0.0, variance) ** 0.5)
