"""Modules of replayed work where ranges are nodes: below the range around the replay, what opened in the graph capture.

The launch shows in which of the user's ranges the work counts. Ranges, operators and modules that opened inside the
graph capture show what it is: they are below that range once more, as if the replay had called them.
"""

from dataclasses import replace

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import depths, firsts, subtree_ends
from tracekit.arrays.types import Rows
from tracekit.graphs.captures import Origins, Windows
from tracekit.trace.calls.calls import Calls
from tracekit.trace.hierarchy.modules import Module


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
