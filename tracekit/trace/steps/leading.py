"""Finds the root that leads each loop: where steps are not marked, each of its runs is a step.

A loop calls several roots: a model and its loss, a draft model and its target, a model and its sampler. One of them
leads. Where it is not certain which one, the loop has no steps.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import one_axis
from tracekit.trace.steps.roots import roots_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.hierarchy.modules import Module
    from tracekit.trace.steps.roots import Outermost, Root

#: With more roots in one loop, the model is not marked as a whole, and no root leads.
_MOST_ROOTS = 8
#: A root is much larger than another if it has this many times as many modules.
_MUCH = 2
#: Of a model with fewer modules than these, it is not known whether they are all that it has.
_KNOWN_SIZE = 8
#: A root that is called once in each cycle does not lead one that is called more often than this.
_LONGEST_CYCLE = 8
_SEVERAL = 2


class Led(NamedTuple):
    """Steps of one process, each from the start of one call to the end of another, mostly the same call.

    Attributes:
        first: Row of the call that begins each step.
        last: Row of the call that ends it.
        name: Name of each step: the path of the module, or of the container of layers.
        unclear: How many calls would be steps, or parts of steps, if it were certain which root leads.
        helping: Threads that work for the step of another thread, since they run replicas.
    """

    first: Rows
    last: Rows
    name: list[str]
    unclear: int
    helping: Rows


def led_steps(calls: Outermost, modules: list[Module], parts: Flags) -> Led:
    """Finds the leading root of each loop of a process, and its runs.

    Args:
        calls: Calls that no other encloses.
        modules: The hierarchy.
        parts: For every module whether it is a part of a called module.
    """
    part = parts[calls.module]
    roots = roots_of(calls, modules, part)
    nothing = np.empty(0, np.int64)
    if roots is None:
        return Led(nothing, nothing, [], int((~part).sum()), nothing)
    leading: list[Root] = []
    unclear = 0
    for loop in _loops(calls, roots):
        leaders = _leaders(calls, loop)
        leading += leaders
        unclear += 0 if leaders else sum(root.calls.size for root in loop)
    first, last = (np.concatenate([nothing, *(getattr(root, side) for root in leading)]) for side in ("first", "last"))
    names = [root.name for root in leading for _ in range(root.first.size)]
    return Led(first, last, names, unclear, _helping(calls, leading))


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
    """The calls in a run of the root in which several threads call the same module: replicas of a part of it."""
    step = np.searchsorted(calls.start_ns[root.first], calls.start_ns, side="right")
    end = np.append(np.iinfo(np.int64).min, calls.end_ns[root.last])[step]
    rows = np.flatnonzero(calls.end_ns <= end)
    code = step[rows] * (int(calls.module.max(initial=0)) + 1) + calls.module[rows]
    _, run = np.unique(code, return_inverse=True)
    _, once_per_thread = np.unique(np.column_stack((run, calls.thread[rows])), axis=0, return_index=True)
    several = np.bincount(run[once_per_thread]) >= _SEVERAL
    return np.asarray(rows[several[run]])


def _loops(calls: Outermost, roots: list[Root]) -> list[list[Root]]:
    """Groups the roots that take turns."""
    loops: list[list[Root]] = []
    for root in roots:
        shared = [loop for loop in loops if any(_take_turns(calls, root, other) for other in loop)]
        loops = [loop for loop in loops if loop not in shared]
        loops.append([root, *(other for loop in shared for other in loop)])
    return loops


def _take_turns(calls: Outermost, root: Root, other: Root) -> bool:
    """Whether two roots share a thread; replicas have threads of their own, and their caller waits for them."""
    if np.intersect1d(calls.thread[root.calls], calls.thread[other.calls]).size:
        return True
    return bool(root.replicated or other.replicated) and not _overlap(calls, root.calls, other.calls)


def _overlap(calls: Outermost, rows: Rows, others: Rows) -> bool:
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(calls.end_ns[rows]))
    before = np.searchsorted(calls.start_ns[rows], calls.end_ns[others], side="left")
    return bool((reach[before] > calls.start_ns[others]).any())


def _leaders(calls: Outermost, loop: list[Root]) -> list[Root]:
    """The roots that no other leads; none if that is not certain."""
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
        beside = few.runs[0] < many.runs[0] or (few.runs[0] > many.runs[-1] and not (much_larger and few is large))
        often = beside and many.runs.size > _LONGEST_CYCLE
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
    """How many times the other root runs from one run of the first to its next, thread by thread."""
    threads = [calls.thread[each.runs] for each in (root, other)]
    if root.replicated or other.replicated:
        threads = [np.zeros_like(thread) for thread in threads]
    axis = one_axis(threads, [calls.start_ns[each.runs] for each in (root, other)])
    order = np.argsort(axis[0])
    count = np.diff(np.searchsorted(np.sort(axis[1]), axis[0][order]))
    same = np.diff(threads[0][order]) == 0
    return np.asarray(count[same])
