"""Which time of a device is which step's: windows, by what is *finished*.

A window of a process and device ends with the last end of its step's own work there, and begins where the one before
ended; a step whose work ends no later than that of an earlier one has none. The first begins with its step on the
host, or with its first work if that is earlier; the last ends with its step on the host, if that is later than its
work. If no work of a process and device has a step, all of it is one window.

How long *a step* takes, of which answers speak, is the mean of windows, so that what only every tenth step does has its
share. The warm-up does not count: the first windows of a process and device, at most half of them, as long as each
takes 1.5 times as long as all later ones there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, maxima, minima, sums
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import REPORT, Dataset

_UNKNOWN = np.iinfo(np.int64)
#: How many times as long as all later windows one of the warm-up takes at least.
_WARM_UP = 1.5


class Steps(NamedTuple):
    """The steps of a report on the host; where that is not known, they begin after and end before all else."""

    id: Ints
    thread: Ints
    start: Ints
    end: Ints


class Windows(NamedTuple):
    """The windows of all lines, by line and start, with the thread of each step on the host."""

    line: Rows
    step: Ints
    thread: Ints
    start: Ints
    end: Ints


def thread_keys(table: pa.Table) -> Ints:
    """A number for the thread of each row."""
    pid, tid = (integers(table, name).astype(np.int64) for name in ("pid", "tid"))
    return (pid << 32) | (tid & 0xFFFF_FFFF)


def host_spans(table: pa.Table) -> tuple[Ints, Ints, Ints]:
    """The thread, start and end of each row."""
    start = integers(table, "start_ns")
    end = integers(table, "end_ns") if "end_ns" in table.column_names else start + integers(table, "dur_ns")
    return thread_keys(table), start, end


def read(dataset: Dataset, name: str, columns: Sequence[str]) -> pa.Table:
    """Columns of a table, and the one of reports if there are several, read report by report."""
    wanted = [*columns, *([REPORT] if dataset.reports else [])]
    return pa.concat_tables([part.table(name, wanted) for part in dataset.by_report()]).unify_dictionaries()


def host_steps(dataset: Dataset) -> Steps:
    """The steps of all reports."""
    table = read(dataset, "steps", ["step_id", "pid", "tid", "start_ns", "end_ns"])
    start, end = integers(table, "start_ns", _UNKNOWN.max), integers(table, "end_ns", _UNKNOWN.min)
    return Steps(integers(table, "step_id"), thread_keys(table), start, end)


def windows_of(line: Rows, step: Ints, start: Ints, end: Ints, steps: Steps) -> Windows:
    """The windows of work, given its line (process and device, from 0), step (-1 for none) and times."""
    rows = np.flatnonzero((step >= 0) | ~np.isin(line, line[step >= 0]))
    group, first = grouped((line[rows], step[rows]))
    start, end = minima(group, start[rows], first.size), maxima(group, end[rows], first.size)
    line, step = line[rows[first]], step[rows[first]]
    place = positions(step, steps.id)
    begun, done = lookup(steps.start, place, _UNKNOWN.max), lookup(steps.end, place, _UNKNOWN.min)
    order = np.lexsort((step, np.where(begun < _UNKNOWN.max, begun, start), line))
    # Numbers that rise with the end within a line, and from line to line.
    rank = grouped((line, end)).group[order]
    own = order[rank > np.append(-1, np.maximum.accumulate(rank)[:-1])[: rank.size]]
    line, step, start, end = line[own], step[own], np.minimum(start, begun)[own], end[own]
    last = np.append(line[1:] != line[:-1], True)[: line.size]
    start[1:] = np.where(last[:-1], start[1:], end[:-1])
    return Windows(line, step, lookup(steps.thread, place[own]), start, np.where(last, np.maximum(end, done[own]), end))


class Steady(NamedTuple):
    """The windows that count as steps, by line: how many come before them, and how many they are."""

    skipped: Ints
    number: Ints

    def means(self, line: Rows, ns: Ints) -> Ints:
        """The time of a step, in columns that add up to it, of each line with steps and, in the last row, of all."""
        own = np.flatnonzero(ns.any(axis=1))
        place = np.arange(own.size) - np.searchsorted(line[own], line[own])
        own, rows = own[place >= self.skipped[line[own]]], np.flatnonzero(self.number)
        totals = np.stack([sums(line[own], column, self.number.size)[rows] for column in ns[own].T], axis=1)
        number = np.append(self.number[rows], max(1, self.number.sum()))
        means: Ints = np.diff(np.cumsum([*totals, totals.sum(axis=0)], axis=1) // number[:, None], prepend=0)
        return means


def steady(line: Rows, ns: Ints) -> Steady:
    """Which windows count, given those of every line in order and their time in columns."""
    skipped, count = (np.zeros(int(line.max(initial=-1)) + 1, np.int64) for _ in range(2))
    lasts = ns.sum(axis=1)
    for number in np.unique(line).tolist():
        own = lasts[(line == number) & (lasts > 0)]
        later = np.maximum.accumulate(own[::-1])[::-1][1:]
        skipped[number] = np.argmin(np.append((own[:-1] > _WARM_UP * later)[: own.size // 2], False))
        count[number] = own.size - skipped[number]
    return Steady(skipped, count)
