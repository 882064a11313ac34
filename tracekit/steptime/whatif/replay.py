"""The times under a model, in one pass over all calls and work in the order in which they were measured.

Everything starts at the latest of some other times, each with a lag. Most work depends on two others; what depends on
more gets a row for each further one, so that the pass is one short loop. Of calls only those that wait have rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.steptime.whatif.model import NEVER, Tasks, Times


def simulated(model: Tasks) -> Times:
    """All times under a model."""
    order, known_from = model.order_of, model.order_of.end(model.meeting)
    met = np.flatnonzero(model.meeting >= 0)
    calls, awaited, after = model.awaited
    works, others, lag = model.dependent
    waits, last_waiting, since = _since_waiting(model)
    place = np.concatenate([order.call[calls], order.start[works], order.arrival[model.meeting[met]]])
    more = counts(place, order.call.size + order.start.size + order.arrival.size)
    # Row 0 is the time 0; a place has one row, and one more for each further condition, of which the last is its time.
    size = 1 + more
    size[order.call[~waits]] = 0
    last = np.cumsum(size)
    call, start, end = (last[places] for places in (order.call[last_waiting], order.start, known_from))
    row = np.concatenate([end[awaited], end[others], start[met]])
    lags = np.concatenate([after + model.lasts[awaited], lag + model.lasts[others], np.zeros(met.size, np.int64)])
    called = model.event >= 0
    caller = np.where(model.early, lookup(model.previous, model.event), model.event)
    since_call = model.launch + np.where(model.early, lookup(model.code, model.event, 0), 0) + lookup(since, caller, 0)
    count, before = 1 + int(size.sum()), model.previous[waits]
    columns = ((np.full(count, value), np.full(count, value)) for value in (0, NEVER))
    table = _Table(last - more, *columns)
    own = (model.code + model.takes)[waits] + lookup(since, before, 0)
    table.put(order.call[waits], 0, lookup(call, before, 0), own)
    table.put(
        order.start, 0, lookup(call, caller, 0), np.select([called, model.before < 0], [since_call, model.alone], NEVER)
    )
    for places, rows, lag in (order.call, model.waits_for, model.after_work), (order.start, model.before, model.order):
        some = np.flatnonzero(rows >= 0)
        table.put(places[some], 1, end[rows[some]], lag[some] + model.lasts[rows[some]])
    table.add(place, row, lags)
    times = table.solved()
    ends = times[call] + since
    return Times(np.append(ends, 0)[model.previous] + model.code, ends, times[start], times[end] + model.lasts)


def _since_waiting(model: Tasks) -> tuple[Flags, Rows, Ints]:
    """Which calls wait for more than the row before; for each the last such, and how long after that it ends."""
    rows = np.arange(model.code.size)
    waits = (model.previous != rows - 1) | (rows == 0) | (model.waits_for >= 0)
    waits[model.awaited[0]] = True
    last = np.maximum.accumulate(np.where(waits, rows, 0))
    since = np.cumsum(np.where(waits, 0, model.code + model.takes))
    return waits, last, since - since[last]


class _Table(NamedTuple):
    """For every row two others and their lags; ``first`` is the first row of each place."""

    first: Rows
    source: tuple[Rows, Rows]
    lag: tuple[Ints, Ints]

    def put(self, place: Rows, which: int, source: Rows, lag: Ints) -> None:
        rows = self.first[place]
        self.source[which][rows], self.lag[which][rows] = source, lag

    def add(self, place: Rows, source: Rows, lag: Ints) -> None:
        """Conditions of places beyond the first two."""
        order = np.argsort(place, kind="stable")
        place = place[order]
        rows = self.first[place] + 1 + np.arange(place.size) - np.searchsorted(place, place)
        self.source[0][rows], self.lag[0][rows] = rows - 1, 0
        self.source[1][rows], self.lag[1][rows] = source[order], lag[order]

    def solved(self) -> Ints:
        times = [0]
        append = times.append
        columns = (column[1:].tolist() for pair in zip(self.source, self.lag, strict=True) for column in pair)
        # Python's integers in lists are read and written faster than single ones of NumPy's.
        for one, lag, other, other_lag in zip(*columns, strict=True):
            time, other_time = times[one] + lag, times[other] + other_lag
            append(time if time > other_time else other_time)  # noqa: FURB136 - a third faster than max
        return np.array(times, np.int64)
