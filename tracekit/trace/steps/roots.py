"""Roots: modules that are called from outside of all modules, and are not part of another called module.

Where numbered layers are marked but not the whole model, a pass through the layers stands for a call of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.trace.hierarchy.places import NAMELESS_ROOT

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.hierarchy.modules import Module

#: A process with more roots than these has no model marked as a whole.
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
    """Whether a path is that of a part of a called module.

    Args:
        path: Path of a call that no other encloses.
        called: Paths of all calls.
        inside: Paths of calls inside calls of other modules.
    """
    above = path
    while (above := above.rpartition(".")[0]) and above not in called:
        pass
    # All other paths are below a model that was registered with an empty name.
    return bool(above) or path in inside or (path != "" and "" in called)


def roots_of(calls: Outermost, modules: list[Module], part: Flags) -> list[Root] | None:
    """The roots of a process; None if there are too many, or none.

    Args:
        calls: Its calls.
        modules: The hierarchy.
        part: Which calls are of parts of a called module.
    """
    rows, parts = np.flatnonzero(~part), np.unique(calls.module[part])
    label = _labels(modules, calls.module[rows])
    order = np.argsort(label, kind="stable")
    labels, begin = np.unique(label[order], return_index=True)
    if not 0 < labels.size <= _MOST_ROOTS:
        return None
    groups = np.split(rows[order], begin[1:])
    top = [modules[calls.module[group[0]]].path.split(".")[0] for group in groups]
    return [
        _root(calls, group, modules, label, parts, only_one=top.count(name) == 1)
        for label, group, name in zip(labels.tolist(), groups, top, strict=True)
    ]


def _root(calls: Outermost, rows: Rows, modules: list[Module], label: int, parts: Ints, *, only_one: bool) -> Root:
    """The root with a label.

    Args:
        calls: The calls of the process.
        rows: Those with the label.
        modules: The hierarchy.
        label: As :func:`_labels` numbers modules and containers.
        parts: Modules that are parts of a called module, and called from outside.
        only_one: Whether no other root has the same first part of its path.
    """
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
    name, size = modules[row].path, _size(modules, row)
    return Root(name, rows, rows, rows, size) if alone and rows.size >= _SEVERAL else _doubtful(name, rows, size)


def _labels(modules: list[Module], module: Ints) -> Ints:
    """The root of each call as a label: its module or, for a numbered one, a higher number for the container."""
    of_module = np.arange(len(modules), dtype=np.int64)
    for row in np.unique(module).tolist():
        if _number(modules[row]) is not None:
            of_module[row] = len(modules) + 1 + modules[row].parent
    return of_module[module]


def _number(module: Module) -> int | None:
    """The number in the name of a layer, or None."""
    name = module.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= _LONGEST_NUMBER else None


def _size(modules: list[Module], row: int) -> int:
    return modules[row].subtree_end - row


def _whole(calls: Outermost, rows: Rows, modules: list[Module], row: int, *, alone: bool) -> Root:
    """A root by its calls. Replicas, run at the same time by threads that do nothing else, count as one call."""
    name, size = modules[row].path, _size(modules, row)
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
    """A number for each of some calls, the same for calls that overlap."""
    reach = np.maximum.accumulate(calls.end_ns[rows])
    fresh = np.append(True, calls.start_ns[rows[1:]] >= reach[:-1])
    return np.cumsum(fresh) - 1


def _layers(calls: Outermost, rows: Rows, modules: list[Module]) -> Root:
    """The numbered layers of a container, by passes through them on the only thread that makes such passes."""
    distinct, layer = np.unique(calls.module[rows], return_inverse=True)
    number = np.array([_number(modules[row]) or 0 for row in distinct.tolist()])[layer]
    above = modules[int(distinct[0])].parent
    name = modules[above].path if above >= 0 else NAMELESS_ROOT
    size = sum(_size(modules, row) for row in distinct.tolist())
    threads = np.unique(calls.thread[rows])
    candidates = []
    for thread in threads[:_MOST_THREADS].tolist():
        on_thread = calls.thread[rows] == thread
        own = rows[on_thread]
        beside = np.union1d(rows, np.flatnonzero(calls.thread == thread))
        passes = _passes(number[on_thread], np.searchsorted(beside, own))
        # With one layer alone it is not known which thread computes it, and which one computes it again.
        if passes is not None and (threads.size == 1 or passes[1][0] > passes[0][0]):
            candidates.append(Root(name, own, own[passes[0]], own[passes[1]], size))
    return candidates[0] if len(candidates) == 1 else _doubtful(name, rows, size)


def _passes(number: Ints, at: Rows) -> tuple[Rows, Rows] | None:
    """The first and last calls of passes, each from the lowest number up, if a thread makes nothing but passes.

    Calls before the first pass belong to one that was cut, and the last pass may be cut, too. In the middle of a pass
    the thread calls nothing else, and no other thread calls the layers again for a backward pass.

    Args:
        number: Numbers of the layers that a thread called.
        at: Positions of these calls among all calls of the thread, and of the layers.
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
    """A root whose runs have no certain begin and end."""
    nothing = np.empty(0, np.int64)
    return Root(name, rows, nothing, nothing, size)


def _on_first_thread(calls: Outermost, rows: Rows) -> Rows:
    """The calls on the thread of the first one: other threads recompute what a backward pass needs."""
    return np.asarray(rows[calls.thread[rows] == calls.thread[rows[0]]])
