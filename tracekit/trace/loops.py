"""Loops of a process that marks no steps: what it calls by turns, and the cycles of that, which are the steps.

One model that is called again and again makes a cycle each time. Several that take turns (a text encoder, four times
a transformer, a decoder) are one cycle together, and each may be called more or less often in it. What is called only
before all others is no part of a cycle, nor is a cycle that was cut off.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT
from tracekit.trace.hierarchy.modules import Module

#: A process that calls more modules from outside has no model marked as a whole.
_MOST_ROOTS = 64
#: The most calls in a cycle that begins and ends with calls of the same root.
_LONGEST_CYCLE = 64
_SEVERAL = 2
#: How often calls come again in the same order that may do so by chance, as those of a draft and its target.
_BY_CHANCE = 4
#: A pause is much longer than another if it takes this many times as long.
_MUCH = 2


class LoopSteps(NamedTuple):
    """Steps of one process, each from the start of one call to the end of another, mostly the same call.

    Attributes:
        name: Name of each step: the paths of its models, or of the container of their layers.
        unclear: How many calls would be parts of steps, if it were certain which of them are an iteration.
        helping: Threads that work for the step of another thread.
    """

    first: Rows
    last: Rows
    name: list[str]
    unclear: int
    helping: Rows


class Outermost(NamedTuple):
    """Calls that no other encloses, by start."""

    range_row: Rows
    thread: Ints
    process: Ints
    start_ns: Ints
    end_ns: Ints
    module: Ints

    def at(self, rows: Flags) -> Outermost:
        """Some of them."""
        return Outermost(*(column[rows] for column in self))


class _Runs(NamedTuple):
    """Calls of roots, one for each time a root runs.

    Attributes:
        line: The same for calls that one thread makes, and for all if they take turns.
        helping: Threads of replicas.
    """

    row: Rows
    line: Ints
    helping: Rows


class _Cycles(NamedTuple):
    """Where cycles begin and end in a sequence of calls, and whether one that follows the last was cut off."""

    begin: Rows
    end: Rows
    cut: bool


def led_steps(calls: Outermost, modules: list[Module], parts: Flags) -> LoopSteps:
    """Finds the cycles of each loop of a process.

    ``calls`` are those of one process; ``parts`` marks for every module whether it is a part of a called one.
    What is called of a model from outside (the encoder of one that generates) belongs to a cycle if it takes turns.
    """
    part, nothing = parts[calls.module], np.empty(0, np.int64)
    outside = np.flatnonzero(~part)
    if not 0 < np.unique(calls.module[outside]).size <= _MOST_ROOTS:
        return LoopSteps(nothing, nothing, [], outside.size, nothing)
    runs = _runs(calls, modules, outside)
    lines = [runs.row[runs.line == number] for number in np.unique(runs.line).tolist()]
    first, last, names = [nothing], [nothing], []
    unclear = 0
    for line in lines:
        beside = np.flatnonzero(part & np.isin(calls.thread, calls.thread[line]))
        ways = ((rows, _cycles(calls, modules, rows)) for rows in (np.union1d(line, beside), line))
        rows, cycles = next((way for way in ways if way[1].begin.size), (line, _NO_CYCLES))
        first.append(rows[cycles.begin])
        last.append(rows[cycles.end - 1])
        spans = zip(cycles.begin.tolist(), cycles.end.tolist(), strict=True)
        names += [_name(modules, calls.module[rows[begin:end]]) for begin, end in spans]
        inside = np.searchsorted(first[-1], line, side="right") - np.searchsorted(last[-1], line)
        unclear += int((inside == 0).sum())
    helping = nothing
    if len(lines) == 1:
        # So do the threads that call by turns what makes a step, and those that call but parts of models.
        turns, parts_alone = np.unique(calls.thread[lines[0]]), np.setdiff1d(calls.thread, calls.thread[~part])
        helping = np.concatenate((runs.helping, turns[: turns.size * (turns.size > 1)], parts_alone))
    return LoopSteps(np.concatenate(first), np.concatenate(last), names, unclear, helping)


def _name(modules: list[Module], called: Ints) -> str:
    rows = [modules[row].parent if _is_layer(modules[row]) else row for row in dict.fromkeys(called.tolist())]
    return " + ".join(dict.fromkeys(modules[row].path if row >= 0 else NAMELESS_ROOT for row in rows))


def _runs(calls: Outermost, modules: list[Module], outside: Rows) -> _Runs:
    # Without numbered layers that another thread computes again, for a backward pass.
    layers = np.array([module.parent if _is_layer(module) else -_SEVERAL for module in modules])[calls.module[outside]]
    container = grouped((layers,))
    again = (layers >= -1) & (calls.thread[outside] != calls.thread[outside[container.first]][container.group])
    rows = outside[~again | ~np.isin(calls.module[outside], calls.module[outside[~again]])]
    found = [_whole(calls, rows[calls.module[rows] == one]) for one in np.unique(calls.module[rows]).tolist()]
    row = np.concatenate([runs.row for runs in found])
    order = np.argsort(row)
    row, line = row[order], np.concatenate([runs.line for runs in found])[order]
    overlap = bool((calls.start_ns[row[1:]] < np.maximum.accumulate(calls.end_ns[row])[:-1]).any())
    if not overlap and grouped((calls.module[row], line)).first.size == len(found):
        line = np.zeros_like(line)  # threads of which each runs other roots, never at the same time
    return _Runs(row, line, np.concatenate([runs.helping for runs in found]))


def _is_layer(module: Module) -> bool:
    return module.name.isdecimal()


def _whole(calls: Outermost, rows: Rows) -> _Runs:
    """How a root runs. Replicas, run at the same time by threads that do nothing else, count as one call."""
    alone = not np.isin(calls.thread[rows], np.delete(calls.thread, rows)).any()
    reach = np.maximum.accumulate(calls.end_ns[rows])
    run = np.cumsum(np.append(True, calls.start_ns[rows[1:]] >= reach[:-1])) - 1
    calls_in_run = np.bincount(run)
    threads, thread, count = np.unique(calls.thread[rows], return_inverse=True, return_counts=True)
    pairs = np.unique(run * threads.size + thread).size
    replicas = int(calls_in_run.max())
    complete = int((calls_in_run == replicas).sum())
    # Some replicas of the first and last run may be missing, where the recording began or ended.
    if not alone or replicas < _SEVERAL or pairs < rows.size or complete * 2 < calls_in_run.size:
        return _Runs(rows, calls.thread[rows], threads[:0])
    # The replica on the busiest thread stands for its run, so that it is the same one if replicas keep their threads.
    order = np.lexsort((thread, -count[thread], run))
    first = rows[order[np.unique(run[order], return_index=True)[1]]]
    # Threads that called a model at the same time only once may have nothing to do with each other.
    return _Runs(first, np.full(first.size, -1), threads[: threads.size * (complete >= _SEVERAL)])


_NO_CYCLES = _Cycles(np.empty(0, np.int64), np.empty(0, np.int64), cut=False)


def _cycles(calls: Outermost, modules: list[Module], rows: Rows) -> _Cycles:
    """The whole cycles of some calls by turns; none if it is not certain what they are.

    The first root that is called again begins a cycle. If the last one was cut off, it may as well have been the first
    one: so it was if pauses before another root are much longer.
    """
    root = calls.module[rows]
    _, number, times = np.unique(root, return_inverse=True, return_counts=True)
    if root.size == 1 or times.max() == 1:
        whole = np.arange(int(root.size == 1 and modules[root[0]].parent < 0))
        return _Cycles(whole, whole + 1, cut=False)
    skipped = int(np.argmax(times[number] > 1))
    pause = np.append(0, calls.start_ns[rows[1:]] - calls.end_ns[rows[:-1]])[skipped:]
    best, longest = _NO_CYCLES, 0.0
    for one in dict.fromkeys(root[skipped:].tolist()):
        cycles = _from_root(root[skipped:], one)
        before = float(np.median(pause[cycles.begin[1:]])) if cycles.begin.size > 1 else 0.0
        if not best.begin.size or before >= _MUCH * longest > 0:
            best, longest = cycles, before
        if not best.cut:
            break
    return _Cycles(best.begin + skipped, best.end + skipped, best.cut)


def _runs_of(root: Ints) -> tuple[Rows, Ints]:
    """Where runs of calls of the same root begin, and how many calls they are."""
    begins = np.flatnonzero(np.append(True, root[1:] != root[:-1]))
    return begins, np.diff(np.append(begins, root.size))


def _from_root(root: Ints, one: int) -> _Cycles:
    """The cycles that begin with a root, if most have the same order, and the others the beginning of it.

    How often a root is called may differ, but not of one that is mostly called once: this would be several cycles of
    which something is missing.
    """
    runs, lengths = _runs_of(root)
    if np.unique(root).size == runs.size and lengths.min() > 1:
        every = np.arange(root.size)  # one model after the other, each again and again
        return _Cycles(every, every + 1, cut=False)
    begins = _begins(root, one)
    if begins.size < _SEVERAL:
        return _NO_CYCLES
    new = np.isin(np.arange(root.size), np.append(runs, begins))
    for other in np.unique(root).tolist():
        new |= (root == other) & (np.median(lengths[root[runs] == other]) == 1)
    ends = np.append(begins[1:], root.size)
    orders = [tuple(root[begin:end][new[begin:end]].tolist()) for begin, end in zip(begins, ends, strict=True)]
    [(order, times)] = Counter(orders).most_common(1)
    begun = [one == order[: len(one)] for one in orders]
    more = [one[: len(order)] == order for one in orders]
    if times <= max(1, len(orders) // 2) or not (
        all(begun[1:-1]) and (begun[0] or more[0]) and (begun[-1] or more[-1])
    ):
        return _NO_CYCLES
    last = begun[-1] and more[-1]
    kept = slice(int(not begun[0]), begins.size - int(not last))
    return _Cycles(begins[kept], ends[kept], cut=not last)


def _begins(root: Ints, one: int) -> Rows:
    """Where cycles begin that begin with a root."""
    first = int(np.argmax(root == one))
    root = root[first:]
    longest = min(_LONGEST_CYCLE, root.size // _SEVERAL)
    period = next((size for size in range(1, longest + 1) if np.array_equal(root[size:], root[:-size])), 0)
    runs, lengths = _runs_of(root)
    own = root[runs] == one
    once = np.isin(np.arange(period, 2 * period), runs[own]).sum() <= 1
    if period and (once or root.size >= _BY_CHANCE * period):
        return first + np.arange(0, root.size, period)
    if np.median(lengths[own]) == 1:
        return first + np.flatnonzero(root == one)
    # A root that is called less often at first may end cycles, too.
    return first + np.asarray(runs[own & (lengths[own][1:] <= lengths[0]).any()])


def is_part(path: str, called: set[str], inside: set[str]) -> bool:
    """Whether the path of a call that no other encloses is that of a part of a called module.

    ``inside`` are the paths of calls inside calls of other modules.
    """
    above = path
    while (above := above.rpartition(".")[0]) and above not in called:
        pass
    # All other paths are below a model that was registered with an empty name.
    return bool(above) or path in inside or (path != "" and "" in called)
