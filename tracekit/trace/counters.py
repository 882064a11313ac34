"""Counters of autograd's sequence numbers: threads, each anew whenever its numbers fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows


class Numbered(NamedTuple):
    """Ranges of operators or of evaluations of nodes, in the order of their starts.

    Attributes:
        row: Row of the recording's ranges.
        start: Start on the axis of all threads.
        end: End on that axis.
        start_ns: Start.
        thread: Row of threads.
        process: Row of processes.
        forward_thread: Row of threads on which a node was made; -1 if that is not told.
        number: Sequence number; -1 where the text has none.
        name: Code of the name: a node has that of its class.
    """

    row: Rows
    start: Ints
    end: Ints
    start_ns: Ints
    thread: Ints
    process: Ints
    forward_thread: Ints
    number: Ints
    name: Ints

    def at(self, rows: Rows | Flags) -> Numbered:
        """Some of them."""
        return Numbered(*(column[rows] for column in self))


class Counters(NamedTuple):
    """What counts: threads, each anew whenever its numbers fall.

    Attributes:
        of_operator: For every operator the counter that it tells.
        process: For every counter its row of processes.
        thread: Its row of threads.
        least: The least number that it tells.
    """

    of_operator: Rows
    process: Ints
    thread: Ints
    least: Ints


class Reach(NamedTuple):
    """How many counters may have made nodes.

    Attributes:
        below: For every node how many counters of its thread, or where that is not told of its process, have told its
            number or one below.
        counter: One of them, or -1.
        above: Whether one tells only numbers above, and may have made it before the recording began.
    """

    below: Ints
    counter: Rows
    above: Flags

    @property
    def by_one(self) -> Flags:
        """Which nodes only one counter can have made."""
        return np.asarray((self.below == 1) & ~self.above)


def counters_of(operators: Numbered) -> Counters:
    """One counter for each thread, and anew whenever its numbers fall."""
    order = np.lexsort((np.arange(operators.start.size), operators.start, operators.thread))
    thread, number = operators.thread[order], operators.number[order]
    anew = np.ones(order.size, dtype=bool)
    anew[1:] = (thread[1:] != thread[:-1]) | (number[1:] < number[:-1])
    counter = np.empty(order.size, dtype=np.int64)
    counter[order] = np.cumsum(anew) - 1
    first = order[anew]
    return Counters(counter, operators.process[first], operators.thread[first], operators.number[first])


def reach_of(nodes: Numbered, counters: Counters) -> Reach:
    """Which counters may have made nodes: they told the number, or one below, or began above it."""
    told = nodes.forward_thread >= 0
    below, counter, all_of_place = (np.zeros(nodes.number.size, dtype=np.int64) for _ in range(3))
    _, rank = np.unique(np.concatenate((counters.least, nodes.number)), return_inverse=True)
    least, number = rank[: counters.least.size], rank[counters.least.size :]
    span = int(rank.max(initial=0)) + 1
    for asked, place, places in (
        (~told, nodes.process, counters.process),
        (told, nodes.forward_thread, counters.thread),
    ):
        order = np.lexsort((least, places))
        key = places[order] * span + least[order]
        first, end = (np.searchsorted(key, (place[asked] + more) * span) for more in (0, 1))
        until = np.searchsorted(key, place[asked] * span + number[asked], side="right")
        below[asked], all_of_place[asked] = np.maximum(until - first, 0), end - first
        counter[asked] = np.append(order, -1)[np.where(until > first, first, -1)]
    return Reach(below, np.where(below > 0, counter, -1), all_of_place > below)
