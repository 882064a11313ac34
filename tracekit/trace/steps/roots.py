"""Roots: modules that are called from outside of all others and are no part of one that is called.

Where no whole model is marked but its numbered layers, a pass through them stands for its call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.trace.hierarchy.modules import NAMELESS_ROOT

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.hierarchy.modules import Module

#: A process that calls more has no model marked as a whole.
_MOST_ROOTS = 64
_LONGEST_NUMBER = 9
_SEVERAL = 2
_MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class Outermost:
    """Calls that no other encloses, of one process, by start.

    Attributes:
        thread: Row of threads.
        start_ns: Start.
        end_ns: End.
        module: Row of modules.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    module: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A root, or the numbered layers of a container.

    Attributes:
        name: Path of the module or of the container.
        calls: Rows of all its calls.
        first: Row of the call that begins each time it runs; nothing if that is not certain.
        last: Row of the call that ends it.
        size: How many modules it has.
        in_parts: Whether parts of it are called from outside, too.
        replicated: How many times all its replicas ran, on several threads at the same time, which count as one.
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
        """Row of the call that begins each time it runs, or all that may begin one."""
        return self.first if self.first.size else self.calls


def is_part(path: str, called: set[str], inside: set[str]) -> bool:
    """Whether a path is that of a part of a module that is called.

    Args:
        path: Path of a call that no other encloses.
        called: Paths of all calls.
        inside: Paths of calls inside those of others.
    """
    above = path
    while (above := above.rpartition(".")[0]) and above not in called:
        pass
    # A model that was registered with an empty name has all other paths below it.
    return bool(above) or path in inside or (path != "" and "" in called)


def roots_of(calls: Outermost, modules: list[Module], part: Flags) -> list[Root] | None:
    """The roots of a process; None if there are too many.

    Args:
        calls: Its calls.
        modules: The hierarchy.
        part: Which calls are of parts of a module that is called.
    """
    rows, parts = np.flatnonzero(~part), np.unique(calls.module[part])
    label = _labels(modules, calls.module[rows])
    order = np.argsort(label, kind="stable")
    labels, begin = np.unique(label[order], return_index=True)
    if labels.size > _MOST_ROOTS:
        return None
    groups = np.split(rows[order], begin[1:])
    top = [modules[calls.module[group[0]]].path.split(".")[0] for group in groups]
    found = []
    for one, group, over in zip(labels.tolist(), groups, top, strict=True):
        if one >= len(modules):
            found.append(_layers(calls, group, modules))
        elif modules[one].parent < 0:
            others = np.delete(calls.thread, group)
            alone = not np.isin(calls.thread[group], others).any()
            root = _whole(calls, group, modules, one, alone=alone)
            inside = (parts > one) & (parts < modules[one].subtree_end)
            found.append(replace(root, in_parts=bool(inside.any())))
        else:
            found.append(_part(calls, group, modules, one, alone=top.count(over) == 1))
    return found


def _part(calls: Outermost, rows: Rows, modules: list[Module], row: int, *, alone: bool) -> Root:
    """A module below a container. It is the root of its model if that runs nothing else and runs it again."""
    rows = _on_first_thread(calls, rows)
    name, size = modules[row].path, _size(modules, row)
    return Root(name, rows, rows, rows, size) if alone and rows.size >= _SEVERAL else _doubtful(name, rows, size)


def _labels(modules: list[Module], module: Ints) -> Ints:
    """What each call is a call of: its module or, of a numbered one, the container, by higher numbers."""
    of_module = np.arange(len(modules), dtype=np.int64)
    for row in np.unique(module).tolist():
        if _number(modules[row]) is not None:
            of_module[row] = len(modules) + 1 + modules[row].parent
    return of_module[module]


def _number(module: Module) -> int | None:
    """The number that a layer goes by."""
    name = module.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= _LONGEST_NUMBER else None


def _size(modules: list[Module], row: int) -> int:
    return modules[row].subtree_end - row


def _whole(calls: Outermost, rows: Rows, modules: list[Module], row: int, *, alone: bool) -> Root:
    """A root by its calls. Replicas, which threads that do nothing else run at the same time, count as one call."""
    name, size = modules[row].path, _size(modules, row)
    reach = np.maximum.accumulate(calls.end_ns[rows])
    fresh = np.append(True, calls.start_ns[rows[1:]] >= reach[:-1])
    together = np.cumsum(fresh) - 1
    number = np.bincount(together)
    threads, thread, often = np.unique(calls.thread[rows], return_inverse=True, return_counts=True)
    pairs = np.unique(together * threads.size + thread).size
    replicas = int(number.max())
    whole = int((number == replicas).sum())
    # Of the first and the last time some may be missing, where the recording began or ended.
    if not alone or replicas < _SEVERAL or pairs < rows.size or whole * 2 < number.size:
        return Root(name, rows, rows, rows, size)
    # Of replicas that keep their threads the same one stands for all.
    order = np.lexsort((thread, -often[thread], together))
    one = rows[order[np.unique(together[order], return_index=True)[1]]]
    return Root(name, rows, one, one, size, replicated=whole)


def _layers(calls: Outermost, rows: Rows, modules: list[Module]) -> Root:
    """The numbered layers of a container, by passes through them on the one thread that makes such."""
    distinct, which = np.unique(calls.module[rows], return_inverse=True)
    number = np.array([_number(modules[row]) or 0 for row in distinct.tolist()])[which]
    above = modules[int(distinct[0])].parent
    name = modules[above].path if above >= 0 else NAMELESS_ROOT
    size = sum(_size(modules, row) for row in distinct.tolist())
    threads = np.unique(calls.thread[rows])
    found = []
    for thread in threads[:_MOST_THREADS].tolist():
        here = calls.thread[rows] == thread
        beside = np.union1d(rows, np.flatnonzero(calls.thread == thread))
        mine = rows[here]
        passes = _passes(number[here], np.searchsorted(beside, mine))
        # Of one layer nobody can say which thread computes it, and which computes it again.
        if passes is not None and (threads.size == 1 or passes[1][0] > passes[0][0]):
            found.append(Root(name, mine, mine[passes[0]], mine[passes[1]], size))
    return found[0] if len(found) == 1 else _doubtful(name, rows, size)


def _passes(number: Ints, at: Rows) -> tuple[Rows, Rows] | None:
    """The first and last calls of passes, each from the lowest number up, if there are such and nothing else.

    What comes before the first one is of a pass that was cut, and the last one may be cut, too. In the middle of a pass
    the thread calls nothing else, and no other thread calls the layers again for a backward pass.

    Args:
        number: Numbers of the layers that a thread called.
        at: Where these calls stand among all of the thread, and of the layers.
    """
    starts = np.flatnonzero(number == number.min())
    if starts.size < _SEVERAL:
        return None
    layers, whole = number[starts[0] : starts[1]], number[starts[0] :]
    if layers.size == 1 and starts.size == _SEVERAL:
        return None  # A forward that was cut may have called it twice.
    ends = np.append(starts[1:], number.size) - 1
    rising = bool((np.diff(layers) > 0).all())
    alone = bool((at[ends] - at[starts] == ends - starts).all())
    alike = np.array_equal(whole, np.resize(layers, whole.size))
    return (starts, ends) if rising and alone and alike else None


def _doubtful(name: str, rows: Rows, size: int) -> Root:
    nothing = np.empty(0, np.int64)
    return Root(name, rows, nothing, nothing, size)


def _on_first_thread(calls: Outermost, rows: Rows) -> Rows:
    """The calls on the thread of the first one: other threads compute again what a backward pass needs."""
    here: Rows = rows[calls.thread[rows] == calls.thread[rows[0]]]
    return here
