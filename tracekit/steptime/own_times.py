"""Own times of ranks: their steps without exposed communication, and which rank has longer ones.

A rank is slow if its own time is longer than that of the median rank in the same steps, by more than ranks
and steps differ anyway.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import sums
from tracekit.arrays.types import Flags, Floats, Ints
from tracekit.dataset.opening import Dataset
from tracekit.steptime import budget
from tracekit.steptime.budget import MEETS, Budgets, Summed

#: The key under which a dataset keeps what all ranks do.
RANK_TIMES = "ranks"

WHO = ("rank", "report", "pid", "device", "host", "gpu")
#: A slow rank's own time is longer by so much at least, and by so many times of what ranks differ by; in so many
#: steps, or in all, and in no few; in all but a few of them by half of that.
_NOTABLY, _TIMES, _LEAST_STEPS, _FEW = 0.06, 4.5, 3, 0.25
_BLOCKED = budget.KINDS.index("host_blocked")
#: From a median of absolute differences to a standard deviation.
_DEVIATION = 1.4826


class RankTimes(NamedTuple):
    """What ranks do in their steps, a row for each rank, or process and device where ranks are not known."""

    who: list[dict[str, Any]]  # the columns of :data:`WHO` of each
    line: dict[tuple[str | None, int, int], int]  # the row of each report, process and device
    step_index: Ints  # the indices of steps
    own_ns: Floats  # own time by rank and step, NaN where a step was not recorded
    kinds_ns: Floats  # by rank and kind of the budget, the mean of its steps
    steps: Ints  # how many each has
    apart: Floats  # by rank, by how much longer its own time is than that of the median rank, as a share
    since: Ints  # by rank, the first column from which on it is slow, or -1
    modules: list[str]  # modules, layers that are alike as a pattern; empty for none
    modules_ns: Floats  # own time by rank and module in the mean of its steps

    @property
    def meets_ns(self) -> Floats:
        """The time of each rank in collectives."""
        return np.asarray(self.kinds_ns[:, MEETS].sum(axis=1))

    @property
    def slow(self) -> list[int]:
        """The rows of slow ranks, the slowest first."""
        return [row for row in np.argsort(-self.apart, kind="stable").tolist() if self.since[row] >= 0]

    def name(self, row: int) -> str:
        """What to call a rank."""
        who = self.who[row]
        name = f"rank {who['rank']}" if who["rank"] is not None else f"process {who['pid']} on device {who['device']}"
        return name if who["host"] is None else f"{name} of {who['host']}"

    def since_step(self, row: int) -> str:
        """Since when a slow rank is slow, if that is not from the start."""
        return f" since step {self.step_index[self.since[row]]}" if self.since[row] > 0 else ""

    @property
    def most_apart(self) -> tuple[list[str | None], Floats]:
        """The module in which each rank differs most from the median rank, and by how much."""
        longer = self.modules_ns - np.array([_quantile(column) for column in self.modules_ns.T])
        most = longer.argmax(axis=1)
        return [self.modules[module] or None for module in most.tolist()], longer[np.arange(most.size), most]

    def held_up_ns(self) -> int:
        """What a step would save, in the mean, if slow ranks worked as long as the slowest of the others."""
        slow = self.since >= 0
        if not slow.any():
            return 0
        # If a host drives several devices, or waits for others, it blocks as long as the slow rank works.
        blocked = self.kinds_ns[:, _BLOCKED]
        others = self.own_ns[~slow] - np.maximum(blocked - blocked[slow].max(), 0)[~slow, None]
        longest, longest_other = (np.fmax.reduce(own, axis=0, initial=np.nan) for own in (self.own_ns[slow], others))
        saved = float(np.nansum((longest - longest_other)[int(self.since[slow].min()) :])) / self.step_index.size
        waiting = self.meets_ns + blocked
        return max(0, round(min(saved, float(waiting.max()) - float(waiting[slow].min()))))


def measured(dataset: Dataset) -> RankTimes:
    """What ranks do in their steps."""
    return times_of(budget.summed(dataset, waits=False))


def longest(dataset: Dataset, times: RankTimes) -> tuple[str, Dataset]:
    """The rank that works longest in a step and its report, which knows what all ranks do and aligns no clocks."""
    row, none = next(iter(times.slow), int(times.apart.argmax())), np.zeros(0, np.int64)
    part = dataset.of_reports(times.who[row]["report"])
    part.known_of_all = {RANK_TIMES: times, budget.WAITED: (none, none)}
    return times.name(row), part


def times_of(budgets: Budgets) -> RankTimes:
    """What ranks do in their steps, given the budgets of all reports."""
    who: dict[tuple[object, ...], dict[str, Any]] = {}
    line: dict[tuple[str | None, int, int], int] = {}
    parts, by_module = [], defaultdict[int, Any](lambda: np.zeros(len(budgets.names), np.int64))
    for one in budgets.reports:
        counted, index = _steps(one)
        rows = np.zeros(one.lines[0].size, np.int64)
        for at, (pid, device) in enumerate(zip(*(ids.tolist() for ids in one.lines), strict=True)):
            # Several reports of a rank share a row.
            key, known = _known(one.part, pid, device)
            who.setdefault(key, known)
            rows[at] = line[known["report"], pid, device] = [*who].index(key)
        for at in np.unique(one.windows.line[counted]).tolist():
            by_module[int(rows[at])] += one.own[at]
        parts.append((rows[one.windows.line[counted]], index[counted], one.by_kind[counted]))
    row, index, kinds = map(np.concatenate, zip(*parts, strict=True))
    number = len(who)
    steps = np.bincount(row, minlength=number)
    own = kinds.sum(axis=1) - kinds[:, MEETS].sum(axis=1)
    index, column = np.unique(index, return_inverse=True)
    by_step = np.full((number, index.size), np.nan)
    by_step[row, column] = own
    apart, since = _apart(by_step)
    since[:] = np.where(kinds[:, MEETS].any(), since, -1)
    mean = np.stack([sums(row, times, number) for times in kinds.T], axis=1) / np.maximum(steps, 1)[:, None]
    modules = np.array([by_module[at] / max(1, steps[at]) for at in range(number)]).reshape(number, len(budgets.names))
    return RankTimes([*who.values()], line, index, by_step, mean, steps, apart, since, budgets.names, modules)


def _steps(one: Summed) -> tuple[Flags, Ints]:
    """Which windows of a report count, those of no step where there are no others, and the indices of their steps."""
    windows, steps = one.windows, one.part.table("steps", ["step_id", "index"])
    index = lookup(integers(steps, "index"), positions(windows.step, integers(steps, "step_id")))
    if np.unique(np.stack([windows.line, index]), axis=1).shape[1] < index.size:
        index = np.concatenate([np.arange(count) for count in np.bincount(windows.line)])
    return (windows.step >= 0) | (windows.step.max(initial=-1) < 0), index


def _known(part: Dataset, pid: int, device: int) -> tuple[tuple[object, ...], dict[str, Any]]:
    """Which row a process and device has, and the columns of :data:`WHO`."""
    entry = part.entries[0]
    rank = next((claim["rank"] for claim in entry.get("ranks", ()) if claim["pid"] == pid), None)
    report = part.names[0]
    gpu = next((one["name"] for one in entry["devices"] if one["device"] == device), None)
    known = (rank, report, pid, None if device < 0 else device, entry["source"].get("host"), gpu)
    return (report, pid, device) if rank is None else (rank, device), dict(zip(WHO, known, strict=True))


def _apart(own_ns: Floats) -> tuple[Floats, Ints]:
    """By how much longer each rank's own time is than that of the median rank, and the column since which it is slow.

    A rank is slow from where on its differences add up to more than half of what is notable, if most of them then are.
    """
    middle = np.array([_quantile(column) for column in own_ns.T])
    ratio = own_ns / np.maximum(middle, 1) - 1
    apart = np.array([_quantile(row) for row in ratio])
    since, slow = np.full(apart.size, -1), np.zeros(apart.size, bool)
    while True:
        # What ranks differ by is told by those that are not slow.
        spread = _DEVIATION * _quantile(np.abs(apart[~slow] - _quantile(apart[~slow])))
        found = [_slow_from(each, max(_NOTABLY, _TIMES * spread)) for each in ratio]
        since[~slow] = np.array(found, np.int64)[~slow]
        if (since[~slow] < 0).all():
            break
        slow = since >= 0
    apart[slow] = [_quantile(each[first:]) for each, first in zip(ratio[slow], since[slow], strict=True)]
    return np.nan_to_num(apart), since


def _slow_from(longer: Floats, notable: float) -> int:
    """The column from which on a rank is slow, or -1."""
    columns = np.flatnonzero(~np.isnan(longer))
    beyond = np.clip(longer[columns], -2 * notable, 2 * notable) - notable / 2
    later = columns[int(np.argmin([0.0, *np.cumsum(beyond)])) :]
    lasts = later.size >= max(min(_LEAST_STEPS, columns.size), _FEW * columns.size, 1)
    most, few = (_quantile(longer[later], share) for share in (0.5, _FEW))
    return int(later[0]) if lasts and most >= notable and few >= notable / 2 else -1


def _quantile(values: Floats, share: float = 0.5) -> float:
    """A quantile of what is known, the median without ``share``; of two values the smaller one."""
    known = np.sort(values[~np.isnan(values)])
    return float(known[int((known.size - 1) * share)]) if known.size else np.nan
