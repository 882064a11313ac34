"""Modules of work that CUDA graphs replay: those that torch wrote on it, or those that opened in the graph capture.

In the latter case ranges are nodes. The launch shows in which of the user's ranges the work counts; what opened inside
the graph capture shows what it is, and is below that range once more, as if the replay had called it.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import depths, firsts, subtree_ends
from tracekit.arrays.types import Flags, Rows
from tracekit.flops.kernels import UNRECORDED
from tracekit.graphs.captures import Origins, Windows
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.calls.calls import Calls
from tracekit.trace.compiled.work import NO_RUN, CompiledContext, CompiledWork, Shares
from tracekit.trace.hierarchy.modules import Module


class AnnotatedWork(NamedTuple):
    """Work on which torch wrote its modules.

    Attributes:
        call: For every kernel the call of its module, of siblings that of the first, or -1.
        shares: For every kernel the row of its shares; negative where it serves one module.
    """

    call: Rows
    shares: Rows

    @property
    def known(self) -> Flags:
        """Which kernels have such a call."""
        return np.asarray(self.call >= 0)


def annotated_work(around: CompiledContext, compiled: CompiledWork) -> tuple[AnnotatedWork, CompiledWork]:
    """Finds the calls of annotated modules inside the launch of each kernel; their work is not of compiled graphs.

    The shares of siblings are added to those of the modules of compiled graphs.
    """
    recording, launch, shares = around.recording, around.launched.launch, compiled.shares
    work = np.flatnonzero((recording.work.annotation >= 0) & (launch >= 0))
    found = AnnotatedWork(*(np.full(launch.size, -1, dtype=np.int64) for _ in range(2)))
    if not work.size:
        return found, compiled
    size = np.array([*map(len, recording.annotations)])[recording.work.annotation[work]]
    kernel = np.repeat(work, size)
    text = np.array([row for one in recording.work.annotation[work].tolist() for row in recording.annotations[one]])
    call = _call_in(recording, around.axis, around.calls, text, launch[kernel])
    found.call[kernel[::-1]] = call[::-1]
    found.call[kernel[call < 0]] = -1
    several: dict[tuple[int, ...], list[int]] = {}
    for rows in np.split(np.arange(kernel.size), np.cumsum(size)[:-1]):
        modules = tuple(sorted({*lookup(around.calls.module, call[rows]).tolist()}))
        if len(modules) > 1 and (call[rows] >= 0).all() and modules[0] >= 0:
            several.setdefault(modules, []).append(int(kernel[rows[0]]))
    for number, kernels in enumerate(several.values(), shares.main.size):
        found.shares[kernels] = number
    shares = _with_equal_parts(shares, list(several))
    return found, replace(compiled, shares=shares, of_work=np.where(found.known, NO_RUN, compiled.of_work))


def _call_in(recording: Recording, axis: ThreadAxis, calls: Calls, text: Rows, launch: Rows) -> Rows:
    """The call of the range of each text inside each launch, or -1."""
    ranges = np.flatnonzero(np.isin(recording.ranges.text, text))
    if not ranges.size:
        return np.full(text.size, -1, dtype=np.int64)
    span = int(axis.launch_end.max()) + 1
    keys = recording.ranges.text[ranges] * np.int64(span) + axis.range_start[ranges]
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(keys[order], text * span + axis.launch_start[launch]), ranges.size - 1)
    row = ranges[order[at]]
    fits = (recording.ranges.text[row] == text) & (axis.range_start[row] >= axis.launch_start[launch])
    fits &= axis.range_end[row] <= axis.launch_end[launch]
    call = np.where(fits, calls.innermost(axis.range_start[row], axis.range_end[row]), -1)
    return np.where(lookup(calls.range_row, call) == row, call, -1)


def _with_equal_parts(shares: Shares, several: list[tuple[int, ...]]) -> Shares:
    if not several:
        return shares
    size = np.array([*map(len, several)])
    modules = np.concatenate(several).astype(np.int32)
    unknown = np.full(modules.size, len(shares.notes))
    return replace(
        shares,
        first=np.append(shares.first, shares.first[-1] + np.cumsum(size)),
        module=np.append(shares.module, modules),
        weight=np.append(shares.weight, np.repeat(1 / size, size)),
        flops=np.append(shares.flops, np.full(modules.size, -1)),
        note=np.append(shares.note, unknown),
        notes=[*shares.notes, UNRECORDED],
        main=np.append(shares.main, [one[0] for one in several]).astype(np.int32),
        recomputes=np.append(shares.recomputes, np.zeros(len(several), dtype=bool)),
    )


def replayed_modules(calls: Calls, windows: Windows, origins: Origins, node: Rows, call: Rows) -> tuple[Calls, Rows]:
    """The calls with the modules of replays, and for every kernel its module, or -1 for that of its launch.

    ``node`` is the row of the node of every kernel that a known launch replayed, else -1.
    """
    if not windows.begin.size:
        return calls, np.full(node.size, -1, dtype=np.int32)
    window, captured_in = windows.at(calls.start, calls.start), windows.at(origins.start, origins.start)
    inner = np.where(captured_in >= 0, calls.innermost(origins.start, origins.end), -1)
    captured = lookup(np.where(lookup(window, inner) == captured_in, inner, -1), node)
    # The outermost call that opened inside the graph capture, and the one around that.
    outermost = firsts(np.where((window >= 0) & (lookup(window, calls.parent) == window), calls.parent, -1))
    related = call, captured, lookup(calls.parent[outermost], captured)
    known = [(of < 0) | (lookup(calls.module, of) >= 0) for of in related]
    rows = np.flatnonzero((captured >= 0) & np.all(known, axis=0))
    module = np.full(node.size, -1, dtype=np.int32)
    if not rows.size:
        return calls, module
    columns = [lookup(calls.module, of[rows]).astype(np.int64) for of in related]
    places = grouped(columns)
    tree = _ModuleTree(calls.modules)
    found = [tree.below(*place) for place in np.stack(columns, axis=1)[places.first].tolist()]
    modules, row = tree.in_order()
    module[rows] = lookup(row, np.array(found))[places.group]
    new_row = [*row.tolist(), -1]
    of_path = [{path: new_row[at] for path, at in one.items()} for one in calls.mapped_modules.places]
    mapped = calls.mapped_modules._replace(places=of_path)
    own = lookup(row, calls.module).astype(np.int32)
    return replace(calls, modules=modules, module=own, mapped_modules=mapped), module


class _ModuleTree:
    """A hierarchy to which modules are added."""

    def __init__(self, modules: list[Module]) -> None:
        self._modules = [*modules]
        self._row = {(module.parent, module.name, module.kind): row for row, module in enumerate(modules)}
        self._paths = {module.path for module in modules}

    def below(self, above: int, own: int, top: int) -> int:
        """The row below ``above`` of what a module is below ``top``; -1 if it is not."""
        if own == top or (top >= 0 and not top < own < self._modules[top].subtree_end):
            return above if own == top else -1
        like, above = self._modules[own], self.below(above, self._modules[own].parent, top)
        row = self._row.setdefault((above, like.name, like.kind), len(self._modules))
        if row == len(self._modules):
            path = f"{self._modules[above].path}.{like.name}" if above >= 0 else like.name
            while path in self._paths:  # a name that holds dots may spell the path of another
                path += "~2"
            self._paths.add(path)
            self._modules.append(replace(like, path=path, parent=above, alias_of=None))
        return row

    def in_order(self) -> tuple[list[Module], Rows]:
        """The modules in pre-order, and for each row the one that it has there."""
        keys: dict[int, tuple[int, ...]] = {-1: ()}
        for row, module in enumerate(self._modules):
            keys[row] = (*keys[module.parent], row)
        order = sorted(range(len(self._modules)), key=keys.__getitem__)
        row_of = np.argsort(order)
        parent = lookup(row_of, np.array([self._modules[row].parent for row in order]))
        columns = zip(order, parent.tolist(), subtree_ends(parent, depths(parent)).tolist(), strict=True)
        return [replace(self._modules[row], parent=above, subtree_end=end) for row, above, end in columns], row_of
