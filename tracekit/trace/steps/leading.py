"""Which root leads a loop, so that each of its runs is a step where nobody marks steps.

A loop calls several roots: a model and its loss, a draft model and its target, a model and its sampler. One of them
leads. Where it is not certain which one, nobody does.
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

#: Of more roots in one loop no one can be said to lead: the model as a whole is not marked.
_MOST_ROOTS = 8
#: A root is much larger than another if it has so many times its modules.
_MUCH = 2
#: A root that is called more often than this in each cycle is not led by one that is called once.
_LONGEST_CYCLE = 8
_SEVERAL = 2


class Led(NamedTuple):
    """Steps of one process, each from the start of one call to the end of another, mostly the same.

    Attributes:
        first: Row of the call that begins each step.
        last: Row of the call that ends it.
        name: What each is called: the path of the module, or of the layers' container.
        unclear: How many calls would be steps or parts of them, if it were certain who leads.
        helping: Threads that work for the step of another one, since they run replicas.
    """

    first: Rows
    last: Rows
    name: list[str]
    unclear: int
    helping: Rows


def led_steps(calls: Outermost, modules: list[Module], parts: Flags) -> Led:
    """Finds who leads each loop of a process.

    Args:
        calls: Calls that no other encloses.
        modules: The hierarchy.
        parts: For every module whether it is a part of one that is called.
    """
    part = parts[calls.module]
    found = roots_of(calls, modules, part)
    nothing = np.empty(0, np.int64)
    if found is None:
        return Led(nothing, nothing, [], int((~part).sum()), nothing)
    leading: list[Root] = []
    unclear = 0
    for loop in _loops(calls, found):
        leaders = _leaders(calls, loop)
        leading += leaders
        unclear += 0 if leaders else sum(root.calls.size for root in loop)
    first, last = (np.concatenate([nothing, *(getattr(root, side) for root in leading)]) for side in ("first", "last"))
    names = [root.name for root in leading for _ in range(root.first.size)]
    return Led(first, last, names, unclear, _helping(calls, leading))


def _helping(calls: Outermost, leading: list[Root]) -> Rows:
    """The threads of replicas. Where several threads have loops, nobody knows whom the others help."""
    nothing = np.empty(0, np.int64)
    if len(leading) != 1:
        return nothing
    [root] = leading
    if root.replicated:
        # Threads that called a model at the same time but once may have nothing to do with each other.
        return np.unique(calls.thread[root.calls]) if root.replicated >= _SEVERAL else nothing
    if np.unique(calls.thread[root.first]).size > 1:
        return nothing
    return np.unique(calls.thread[_replicated(calls, root)])


def _replicated(calls: Outermost, root: Root) -> Rows:
    """The calls in a run of the root in which several threads call the same module: replicas of a part of it."""
    step = np.searchsorted(calls.start_ns[root.first], calls.start_ns, side="right")
    end = np.append(np.iinfo(np.int64).min, calls.end_ns[root.last])[step]
    rows = np.flatnonzero(calls.end_ns <= end)
    same = step[rows] * (int(calls.module.max(initial=0)) + 1) + calls.module[rows]
    _, which = np.unique(same, return_inverse=True)
    _, each = np.unique(np.column_stack((which, calls.thread[rows])), axis=0, return_index=True)
    several = np.bincount(which[each]) >= _SEVERAL
    replicas: Rows = rows[several[which]]
    return replicas


def _loops(calls: Outermost, roots: list[Root]) -> list[list[Root]]:
    """Puts together the roots that run by turns."""
    loops: list[list[Root]] = []
    for root in roots:
        mine = [loop for loop in loops if any(_by_turns(calls, root, other) for other in loop)]
        loops = [loop for loop in loops if loop not in mine]
        loops.append([root, *(other for loop in mine for other in loop)])
    return loops


def _by_turns(calls: Outermost, one: Root, other: Root) -> bool:
    """Whether two roots share a thread; replicas have threads of their own, and whoever calls them waits."""
    if np.intersect1d(calls.thread[one.calls], calls.thread[other.calls]).size:
        return True
    return bool(one.replicated or other.replicated) and not _overlap(calls, one.calls, other.calls)


def _overlap(calls: Outermost, one: Rows, other: Rows) -> bool:
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(calls.end_ns[one]))
    before = np.searchsorted(calls.start_ns[one], calls.end_ns[other], side="left")
    return bool((reach[before] > calls.start_ns[other]).any())


def _leaders(calls: Outermost, loop: list[Root]) -> list[Root]:
    """Whom nobody leads; nobody if that is not certain."""
    most = max(root.size for root in loop)
    if len(loop) > _MOST_ROOTS:
        loop = [root for root in loop if root.size * _MUCH > most]
    if len(loop) > _MOST_ROOTS:
        return []
    doubtful, led = set(), set()
    for one, other in combinations(loop, 2):
        if not _by_turns(calls, one, other):
            continue
        led_here = _led(calls, one, other)
        if led_here is None:
            doubtful |= {one, other}
        else:
            led.update(led_here)
    leaders = [root for root in loop if root not in led]
    certain = all(root.first.size and root not in doubtful for root in leaders)
    return leaders if certain else []


def _led(calls: Outermost, one: Root, other: Root) -> list[Root] | None:
    """Which of two roots the other one leads: one, none, or (None) it is not certain."""
    few, many = sorted((one, other), key=lambda root: root.runs.size)
    small, large = sorted((one, other), key=lambda root: root.size)
    late = max(one, other, key=lambda root: int(root.runs[0]))
    much_larger = large.size >= _MUCH * small.size
    if few.runs.size == 1 and many.runs.size > 1:
        # A warm-up, or the only cycle of a loop that calls the other several times.
        before = few.runs[0] < many.runs[0] and many.runs.size > _LONGEST_CYCLE
        return [few] if before or (much_larger and few is small) else None
    by_few, by_many = _between(calls, few, many), _between(calls, many, few)
    if by_few.size and by_many.size and not by_few.any() and not by_many.any():
        # One is over before the other begins.
        return [small] if much_larger else []
    if by_few.size and np.median(by_few) >= _SEVERAL:
        return _led_of_cycle(calls, few, many, by_few)
    if much_larger or one.in_parts == other.in_parts:
        return [small if much_larger else late]
    return [other if one.in_parts else one]


def _led_of_cycle(calls: Outermost, few: Root, many: Root, between: Ints) -> list[Root] | None:
    """Which of two roots is led where one is called several times for each call of the other."""
    if few.size >= _MUCH * many.size:
        return [many]
    threads, at = np.unique(np.concatenate([calls.thread[root.runs] for root in (few, many)]), return_inverse=True)
    counts = [np.bincount(one, minlength=threads.size) for one in np.split(at, [few.runs.size])]
    whole_cycles = np.array_equal(counts[1], counts[0] * between[0])
    regular = bool((between == between[0]).all()) and (whole_cycles or between.size > _SEVERAL)
    if regular and between[0] <= _LONGEST_CYCLE:
        return [many]
    return [few] if many.size >= _MUCH * few.size else None


def _between(calls: Outermost, one: Root, other: Root) -> Ints:
    """How many times the second root runs from one run of the first to its next, thread by thread."""
    threads = [calls.thread[root.runs] for root in (one, other)]
    if one.replicated or other.replicated:
        threads = [np.zeros_like(thread) for thread in threads]
    axis = one_axis(threads, [calls.start_ns[root.runs] for root in (one, other)])
    order = np.argsort(axis[0])
    count = np.diff(np.searchsorted(np.sort(axis[1]), axis[0][order]))
    same = np.diff(threads[0][order]) == 0
    return np.asarray(count[same])
