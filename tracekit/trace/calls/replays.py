"""Modules of replayed work where ranges are nodes: below the range around the replay, what opened in the graph capture.

The launch says in which of the user's ranges the work counts. Ranges, operators and modules that opened inside the
graph capture say what it is: they stand below that range once more, as if the replay had called them.
"""

from dataclasses import replace

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import depths, firsts, subtree_ends
from tracekit.arrays.types import Ints, Rows
from tracekit.graphs.captures import Origins, Windows
from tracekit.trace.calls.calls import Calls
from tracekit.trace.hierarchy.modules import Module

_UNKNOWN = -2


def replayed_modules(calls: Calls, windows: Windows, origins: Origins, node: Rows, call: Rows) -> tuple[Calls, Rows]:
    """The calls with the modules of replays, and for every kernel its module, or -1 for that of its launch.

    Args:
        calls: The calls.
        windows: The graph captures of which begin and end are known.
        origins: Where each node was captured.
        node: For every kernel that a known launch replayed the row of its node; else -1.
        call: For every kernel the call around its launch, or -1.
    """
    window = windows.at(calls.start, calls.start)
    inner = np.where(origins.known, calls.innermost(origins.start, origins.end), -1)
    opened = (lookup(window, inner) >= 0) & (lookup(window, inner) == windows.at(origins.start, origins.start))
    captured = lookup(np.where(opened, inner, -1), node)
    rows = np.flatnonzero(captured >= 0)
    # The outermost call that opened inside the graph capture, and the one around that.
    outermost = firsts(np.where((window >= 0) & (lookup(window, calls.parent) == window), calls.parent, -1))
    related = call[rows], captured[rows], calls.parent[outermost[captured[rows]]]
    places = grouped([_modules(calls, of) for of in related])
    tree = _ModuleTree(calls.modules)
    found = [
        tree.below(*place)
        for place in zip(*(_modules(calls, of[places.first]).tolist() for of in related), strict=True)
    ]
    modules, row = tree.in_order()
    module = np.full(node.size, -1, dtype=np.int64)
    module[rows] = np.append(row, (-1, -1))[np.array(found, dtype=np.int64)][places.group]
    of_path = [
        {path: int(np.append(row, -1)[at]) for path, at in known.items()} for known in calls.mapped_modules.places
    ]
    mapped = calls.mapped_modules._replace(places=of_path)
    return replace(
        calls, modules=modules, module=lookup(row, calls.module).astype(np.int32), mapped_modules=mapped
    ), module


def _modules(calls: Calls, of: Rows) -> Ints:
    module = lookup(calls.module, of)
    return np.where((of >= 0) & (module < 0), _UNKNOWN, module)


class _ModuleTree:
    """A hierarchy to which modules are added."""

    def __init__(self, modules: list[Module]) -> None:
        self._modules = [*modules]
        self._row = {(module.parent, module.name, module.kind): row for row, module in enumerate(modules)}
        self._paths = {module.path for module in modules}

    def below(self, above: int, own: int, top: int) -> int:
        """The row below ``above`` of what a module is below ``top``."""
        if own == top or own < 0 or above == _UNKNOWN:
            return above if own == top else _UNKNOWN
        above, like = self.below(above, self._modules[own].parent, top), self._modules[own]
        if above == _UNKNOWN:
            return above
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
        keys: list[tuple[int, ...]] = []
        for row, module in enumerate(self._modules):
            keys.append((*(keys[module.parent] if module.parent >= 0 else ()), row))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        row_of = np.argsort(order)
        parent = lookup(row_of, np.array([self._modules[row].parent for row in order], dtype=np.int64))
        columns = zip(order, parent.tolist(), subtree_ends(parent, depths(parent)).tolist(), strict=True)
        return [replace(self._modules[row], parent=above, subtree_end=end) for row, above, end in columns], row_of
