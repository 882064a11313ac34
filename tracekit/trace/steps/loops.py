"""Loops of a process that marks no steps: the models that it calls, and the one whose calls are the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT
from tracekit.trace.hierarchy.modules import Module

#: With more roots in one loop, the model is not marked as a whole, and no root leads.
_MOST_ROOTS = 8
#: A root is much larger than another if it has this many times as many modules.
_MUCH = 2
#: Of a model with fewer modules than these, it is not known whether they are all that it has.
_KNOWN_SIZE = 8
#: A root that is called once in each cycle does not lead one that is called more often than this.
_LONGEST_CYCLE = 8
_SEVERAL = 2


class LoopSteps(NamedTuple):
    """Steps of one process, each from the start of one call to the end of another, mostly the same call.

    Attributes:
        name: Name of each step: the path of the module, or of the container of layers.
        unclear: How many calls would be steps, or parts of steps, if it were certain which root leads.
        helping: Threads that work for the step of another thread, since they run replicas.
    """

    first: Rows
    last: Rows
    name: list[str]
    unclear: int
    helping: Rows


def led_steps(calls: Outermost, modules: list[Module], parts: Flags) -> LoopSteps:
    """Finds the leading root of each loop of a process, and its runs.

    ``calls`` are those that no other encloses; ``parts`` marks for every module whether it is a part of a called one.
    """
    part = parts[calls.module]
    roots = roots_of(calls, modules, part)
    nothing = np.empty(0, np.int64)
    if roots is None:
        return LoopSteps(nothing, nothing, [], int((~part).sum()), nothing)
    leading: list[Root] = []
    unclear = 0
    for loop in _loops(calls, roots):
        leaders = _leaders(calls, loop)
        leading += leaders
        unclear += 0 if leaders else sum(root.calls.size for root in loop)
    first, last = (np.concatenate([nothing, *(getattr(root, side) for root in leading)]) for side in ("first", "last"))
    names = [root.name for root in leading for _ in range(root.first.size)]
    return LoopSteps(first, last, names, unclear, _helping(calls, leading))


def _helping(calls: Outermost, leading: list[Root]) -> Rows:
    """The threads of replicas. With several loops it is not known which of them a thread helps."""
    nothing = np.empty(0, np.int64)
    if len(leading) != 1:
        return nothing
    [root] = leading
    if root.replicated:
        # Threads that called a model at the same time only once may have nothing to do with each other.
        return np.unique(calls.thread[root.calls]) if root.replicated >= _SEVERAL else nothing
    if np.unique(calls.thread[root.first]).size > 1:
        return nothing
    return np.unique(calls.thread[_replicated(calls, root)])


def _replicated(calls: Outermost, root: Root) -> Rows:
    step = np.searchsorted(calls.start_ns[root.first], calls.start_ns, side="right")
    end = np.append(np.iinfo(np.int64).min, calls.end_ns[root.last])[step]
    rows = np.flatnonzero(calls.end_ns <= end)
    code = step[rows] * (int(calls.module.max(initial=0)) + 1) + calls.module[rows]
    _, run = np.unique(code, return_inverse=True)
    _, once_per_thread = np.unique(np.column_stack((run, calls.thread[rows])), axis=0, return_index=True)
    several = np.bincount(run[once_per_thread]) >= _SEVERAL
    return np.asarray(rows[several[run]])


def _loops(calls: Outermost, roots: list[Root]) -> list[list[Root]]:
    loops: list[list[Root]] = []
    for root in roots:
        shared = [loop for loop in loops if any(_take_turns(calls, root, other) for other in loop)]
        loops = [loop for loop in loops if loop not in shared]
        loops.append([root, *(other for loop in shared for other in loop)])
    return loops


def _take_turns(calls: Outermost, root: Root, other: Root) -> bool:
    if np.intersect1d(calls.thread[root.calls], calls.thread[other.calls]).size:
        return True
    return bool(root.replicated or other.replicated) and not _overlap(calls, root.calls, other.calls)


def _overlap(calls: Outermost, rows: Rows, others: Rows) -> bool:
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(calls.end_ns[rows]))
    before = np.searchsorted(calls.start_ns[rows], calls.end_ns[others], side="left")
    return bool((reach[before] > calls.start_ns[others]).any())


def _leaders(calls: Outermost, loop: list[Root]) -> list[Root]:
    most = max(root.size for root in loop)
    if len(loop) > _MOST_ROOTS:
        loop = [root for root in loop if root.size * _MUCH > most]
    if len(loop) > _MOST_ROOTS:
        return []
    doubtful, led = set(), set()
    for root, other in combinations(loop, 2):
        if not _take_turns(calls, root, other):
            continue
        led_of_pair = _led(calls, root, other)
        if led_of_pair is None:
            doubtful |= {root, other}
        else:
            led.update(led_of_pair)
    leaders = [root for root in loop if root not in led]
    certain = all(root.first.size and root not in doubtful for root in leaders)
    return leaders if certain else []


def _led(calls: Outermost, root: Root, other: Root) -> list[Root] | None:
    """Which of two roots is led by the other: one of them, or neither; None if that is not certain."""
    few, many = sorted((root, other), key=lambda root: root.runs.size)
    small, large = sorted((root, other), key=lambda root: root.size)
    late = max(root, other, key=lambda root: int(root.runs[0]))
    much_larger = large.size >= _MUCH * small.size
    if few.runs.size == 1 and many.runs.size > 1:
        # A warm-up, or the only cycle of a loop that calls the other several times.
        between = few.runs[0] < many.runs[0] or (few.runs[0] > many.runs[-1] and not (much_larger and few is large))
        often = between and many.runs.size > _LONGEST_CYCLE
        return [few] if often or (much_larger and few is small) else None
    by_few, by_many = _between(calls, few, many), _between(calls, many, few)
    if by_few.size and by_many.size and not by_few.any() and not by_many.any():
        # One root has finished before the other begins.
        return [small] if much_larger else []
    if by_few.size and np.median(by_few) >= _SEVERAL:
        return _led_of_cycle(calls, few, many, by_few)
    if much_larger or root.in_parts == other.in_parts:
        return [small if much_larger else late]
    return [other if root.in_parts else root]


def _led_of_cycle(calls: Outermost, few: Root, many: Root, between: Ints) -> list[Root] | None:
    """Which of two roots is led, where one is called several times for each call of the other."""
    if few.size >= _MUCH * many.size:
        return [many]
    if many.size >= max(_MUCH * few.size, _KNOWN_SIZE):
        return [few]
    thread = np.concatenate([calls.thread[root.runs] for root in (few, many)])
    threads, thread = np.unique(thread, return_inverse=True)
    counts = [np.bincount(runs, minlength=threads.size) for runs in np.split(thread, [few.runs.size])]
    whole_cycles = np.array_equal(counts[1], counts[0] * between[0])
    regular = bool((between == between[0]).all()) and (whole_cycles or between.size > _SEVERAL)
    if regular and between[0] <= _LONGEST_CYCLE:
        # Of large models that are alike, either may lead: the target of a draft, or what denoises before a decoder.
        return [many] if min(few.size, many.size) < _KNOWN_SIZE else None
    return [few] if many.size >= _MUCH * few.size else None


def _between(calls: Outermost, root: Root, other: Root) -> Ints:
    threads = [calls.thread[each.runs] for each in (root, other)]
    if root.replicated or other.replicated:
        threads = [np.zeros_like(thread) for thread in threads]
    axis = one_axis(threads, [calls.start_ns[each.runs] for each in (root, other)])
    order = np.argsort(axis[0])
    count = np.diff(np.searchsorted(np.sort(axis[1]), axis[0][order]))
    same = np.diff(threads[0][order]) == 0
    return np.asarray(count[same])


#: A process with more roots than these has no model marked as a whole.
_MOST_NUMBERED = 64
_LONGEST_NUMBER = 9
_MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class Outermost:
    """Calls that no other encloses, of one process, by start.

    Attributes:
        sizes: For every module of the hierarchy how many modules the process calls there and below, with containers.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    module: Ints
    sizes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A root, or the numbered layers of a container.

    Attributes:
        first: Row of the call that begins each time it runs; nothing if that is not certain.
        in_parts: Whether parts of it are also called from outside.
        replicated: How many times all its replicas ran at once, on several threads; these calls count as one.
    """

    name: str
    calls: Rows
    first: Rows
    last: Rows
    size: int
    in_parts: bool = False
    replicated: int = 0

    @property
    def runs(self) -> Rows:
        """Row of the call that begins each time it runs, or all calls that may begin one."""
        return self.first if self.first.size else self.calls


def is_part(path: str, called: set[str], inside: set[str]) -> bool:
    """Whether the path of a call that no other encloses is that of a part of a called module.

    ``inside`` are the paths of calls inside calls of other modules.
    """
    above = path
    while (above := above.rpartition(".")[0]) and above not in called:
        pass
    # All other paths are below a model that was registered with an empty name.
    return bool(above) or path in inside or (path != "" and "" in called)


def roots_of(calls: Outermost, modules: list[Module], part: Flags) -> list[Root] | None:
    """The roots of a process; None if there are too many, or none."""
    rows, parts = np.flatnonzero(~part), np.unique(calls.module[part])
    label = _labels(modules, calls.module[rows])
    order = np.argsort(label, kind="stable")
    labels, begin = np.unique(label[order], return_index=True)
    if not 0 < labels.size <= _MOST_NUMBERED:
        return None
    groups = np.split(rows[order], begin[1:])
    top = [modules[calls.module[group[0]]].path.split(".")[0] for group in groups]
    return [
        _root(calls, group, modules, label, parts, only_one=top.count(name) == 1)
        for label, group, name in zip(labels.tolist(), groups, top, strict=True)
    ]


def _root(calls: Outermost, rows: Rows, modules: list[Module], label: int, parts: Ints, *, only_one: bool) -> Root:
    if label >= len(modules):
        return _layers(calls, rows, modules)
    if modules[label].parent >= 0:
        return _part(calls, rows, modules, label, alone=only_one)
    alone = not np.isin(calls.thread[rows], np.delete(calls.thread, rows)).any()
    root = _whole(calls, rows, modules, label, alone=alone)
    inside = (parts > label) & (parts < modules[label].subtree_end)
    return replace(root, in_parts=bool(inside.any()))


def _part(calls: Outermost, rows: Rows, modules: list[Module], row: int, *, alone: bool) -> Root:
    """A module below a container: the root of its model if the process calls nothing else of it, and calls it again."""
    rows = _on_first_thread(calls, rows)
    name, size = modules[row].path, int(calls.sizes[row])
    return Root(name, rows, rows, rows, size) if alone and rows.size >= _SEVERAL else _doubtful(name, rows, size)


def _labels(modules: list[Module], module: Ints) -> Ints:
    of_module = np.arange(len(modules), dtype=np.int64)
    for row in np.unique(module).tolist():
        if _number(modules[row]) is not None:
            of_module[row] = len(modules) + 1 + modules[row].parent
    return of_module[module]


def _number(module: Module) -> int | None:
    name = module.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= _LONGEST_NUMBER else None


def _whole(calls: Outermost, rows: Rows, modules: list[Module], row: int, *, alone: bool) -> Root:
    """A root by its calls. Replicas, run at the same time by threads that do nothing else, count as one call."""
    name, size = modules[row].path, int(calls.sizes[row])
    run = _overlapping(calls, rows)
    calls_in_run = np.bincount(run)
    threads, thread, count = np.unique(calls.thread[rows], return_inverse=True, return_counts=True)
    pairs = np.unique(run * threads.size + thread).size
    replicas = int(calls_in_run.max())
    complete = int((calls_in_run == replicas).sum())
    # Some replicas of the first and last run may be missing, where the recording began or ended.
    if not alone or replicas < _SEVERAL or pairs < rows.size or complete * 2 < calls_in_run.size:
        return Root(name, rows, rows, rows, size)
    # The replica on the busiest thread stands for its run, so that it is the same one if replicas keep their threads.
    order = np.lexsort((thread, -count[thread], run))
    first = rows[order[np.unique(run[order], return_index=True)[1]]]
    return Root(name, rows, first, first, size, replicated=complete)


def _overlapping(calls: Outermost, rows: Rows) -> Ints:
    reach = np.maximum.accumulate(calls.end_ns[rows])
    fresh = np.append(True, calls.start_ns[rows[1:]] >= reach[:-1])
    return np.cumsum(fresh) - 1


def _layers(calls: Outermost, rows: Rows, modules: list[Module]) -> Root:
    """The numbered layers of a container, by passes through them on the only thread that makes such passes."""
    distinct, layer = np.unique(calls.module[rows], return_inverse=True)
    number = np.array([_number(modules[row]) or 0 for row in distinct.tolist()])[layer]
    above = modules[int(distinct[0])].parent
    name = modules[above].path if above >= 0 else NAMELESS_ROOT
    size = int(calls.sizes[distinct].sum())
    threads = np.unique(calls.thread[rows])
    candidates = []
    for thread in threads[:_MOST_THREADS].tolist():
        on_thread = calls.thread[rows] == thread
        own = rows[on_thread]
        together = np.union1d(rows, np.flatnonzero(calls.thread == thread))
        passes = _passes(number[on_thread], np.searchsorted(together, own))
        # With only one layer it is not known which thread computes it, and which one computes it again.
        if passes is not None and (threads.size == 1 or passes[1][0] > passes[0][0]):
            candidates.append(Root(name, own, own[passes[0]], own[passes[1]], size))
    return candidates[0] if len(candidates) == 1 else _doubtful(name, rows, size)


def _passes(number: Ints, at: Rows) -> tuple[Rows, Rows] | None:
    """The first and last calls of passes, each from the lowest number up, if a thread makes nothing but passes.

    Calls before the first pass belong to one that was cut, and the last pass may be cut, too. In the middle of a pass
    the thread calls nothing else, and no other thread calls the layers again for a backward pass.
    """
    starts = np.flatnonzero(number == number.min())
    if starts.size < _SEVERAL:
        return None
    layers, whole = number[starts[0] : starts[1]], number[starts[0] :]
    if layers.size == 1 and starts.size == _SEVERAL:
        return None  # a forward that was cut may have called it twice
    ends = np.append(starts[1:], number.size) - 1
    rising = bool((np.diff(layers) > 0).all())
    alone = bool((at[ends] - at[starts] == ends - starts).all())
    alike = np.array_equal(whole, np.resize(layers, whole.size))
    return (starts, ends) if rising and alone and alike else None


def _doubtful(name: str, rows: Rows, size: int) -> Root:
    nothing = np.empty(0, np.int64)
    return Root(name, rows, nothing, nothing, size)


def _on_first_thread(calls: Outermost, rows: Rows) -> Rows:
    return np.asarray(rows[calls.thread[rows] == calls.thread[rows[0]]])
