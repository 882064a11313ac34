"""Modules of kernel maps in the hierarchy, which have no calls of their own."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import grouped, minima
from tracekit.arrays.types import Ints, Rows
from tracekit.markers.base import MODULE, Marker, ModuleMarker
from tracekit.trace.hierarchy.module_paths import DEEPEST_PLACE, MOST_CHARACTERS, name_and_kind, place
from tracekit.trace.hierarchy.module_trees import ModuleTrees, Tree

#: What a tree takes of the room for all paths, as characters.
_TREE_SIZE = 128
_NUMBER = re.compile(r"[0-9]{1,9}")
#: In place of a row of places: the graph has no map; and it is not known of which module its run was a part.
NO_MAP, UNPLACED = -1, -2


class MappedRuns(NamedTuple):
    """Runs of compiled graphs, by (start, -end).

    Attributes:
        graph: Row of the graphs; ``NO_MAP`` for one without a map.
        roots: For every graph the path of the module that was compiled, or its class.
    """

    start: Ints
    end: Ints
    process: Rows
    start_ns: Ints
    graph: Rows
    roots: Sequence[str]
    paths: Sequence[Sequence[str]]


_NONE = np.empty(0, dtype=np.int64)
NO_RUNS = MappedRuns(_NONE, _NONE, _NONE, _NONE, _NONE, [], [])


class MappedModules(NamedTuple):
    """Where the modules of kernel maps stand.

    Attributes:
        of_run: For every run the row of its places, ``NO_MAP`` or ``UNPLACED``.
        places: By the paths of a map, rows of modules; -1 where it is not known which module has that path.
    """

    of_run: Rows
    places: list[dict[str, int]]


def add_mapped_modules(
    runs: MappedRuns,
    enclosing: tuple[Rows, Rows, Rows],
    trees_of_processes: ModuleTrees,
    markers: Sequence[Marker],
    paths: Sequence[str],
) -> tuple[Rows, list[dict[str, Tree | None]]]:
    """The modules of the maps of some runs, each once for every place and map, added to the trees of processes.

    ``enclosing`` is for every run the row of the node of the call around it (-1 for none, ``UNPLACED`` where it is not
    known), of its path and of its marker.

    Returns:
        For every run a row as ``MappedModules.of_run``, and for these the tree of each path; None if it is not known.
    """
    node, place_around, marker_around = enclosing
    of_run = np.where(runs.graph < 0, NO_MAP, np.where(node == UNPLACED, UNPLACED, 0))
    rows = np.flatnonzero(of_run == 0)
    groups = grouped((runs.process[rows], node[rows], marker_around[rows], runs.graph[rows]))
    of_run[rows] = groups.group
    first_ns = minima(groups.group, runs.start_ns[rows], groups.first.size)
    builder = TreeBuilder(trees_of_processes)
    trees: list[dict[str, Tree | None]] = [{} for _ in groups.first]
    for number in np.argsort(first_ns, kind="stable").tolist():
        row = rows[groups.first[number]]
        position, graph = int(node[row]), int(runs.graph[row])
        tree = None if position < 0 else trees_of_processes.of_node[position]
        marker = markers[marker_around[row]] if position >= 0 else None
        above = (paths[place_around[row]], marker.path) if isinstance(marker, ModuleMarker) else None
        where = int(runs.process[row]), int(first_ns[number])
        trees[number] = builder.add(_Position(tree, above), runs.roots[graph], runs.paths[graph], where)
    return of_run, trees


class _Position(NamedTuple):
    tree: Tree | None
    above: tuple[str, str] | None


class TreeBuilder:
    """Finds the trees of modules by their paths, and adds those that are missing."""

    def __init__(self, trees_of_processes: ModuleTrees) -> None:
        self._trees = trees_of_processes
        self._below: dict[int, dict[str, list[Tree]]] = {}
        self._roots: dict[tuple[int, str], list[Tree]] = {}
        for tree in trees_of_processes.roots:
            if tree.kind == MODULE:
                self._roots.setdefault((tree.source, tree.name), []).append(tree)
        self._characters = 0

    def add(
        self, position: _Position, root: str, paths: Iterable[str], where: tuple[int, int]
    ) -> dict[str, Tree | None]:
        """The trees of the modules of a map, by paths below ``root``; None where several may be meant.

        The root is the path of the module that was compiled, or its class; empty where several were, whose paths are
        whole. ``where`` is the row of the process, and when the run began.
        """
        whole = not root and (position.above is None or position.above[1] != "")
        below = None if whole else self._root(position, root, where)
        trees: dict[str, Tree | None] = {}
        for order, path in enumerate(_in_order(paths)):
            self._characters += len(path) + _TREE_SIZE
            full = self._characters > MOST_CHARACTERS
            top, rest = self._top(position, path, where) if whole and not full else (below, path)
            parts = rest.split(".") if rest else []
            trees[path] = None if full else self._walk(top, parts, (where[1], order))
        return trees

    def _top(self, position: _Position, path: str, where: tuple[int, int]) -> tuple[Tree | None, str]:
        """A module above one with a whole path, as near as the call around it shows, and the path below it."""
        parts = path.split(".")
        named = [] if position.above is None else position.above[1].split(".")
        common = 1
        while common < min(len(parts), len(named)) and parts[: common + 1] == named[: common + 1]:
            common += 1
        top = self._root(position, ".".join(parts[:common]), where)
        # A shared module may be called where the modules around it are not those around its name.
        known = top is not None and top.name == parts[common - 1]
        return top if known else None, ".".join(parts[common:])

    def _root(self, position: _Position, root: str, where: tuple[int, int]) -> Tree | None:
        process, first_ns = where
        tree, above = position
        if tree is None or above is None:
            parts = place(None, root).split(".")
            known = self._roots.setdefault((process, parts[0]), [])
            if not known:
                known.append(Tree(parts[0], process, -1, first=(first_ns, 0)))
                self._trees.roots.append(known[0])
            return self._walk(known[0] if len(known) == 1 else None, parts[1:], (first_ns, 0))
        outer = self._of_marker(tree, above[1], root)
        if outer is not None:
            return outer
        parts = place(above, root)[len(above[0]) + 1 :].split(".")
        return self._walk(tree, parts, (first_ns, 0))

    def _of_marker(self, tree: Tree, path: str, root: str) -> Tree | None:
        """The tree, or one above it, if its marker names the root; None if the root stands below."""
        if path != root and not path.startswith(f"{root}."):
            return None
        outer: Tree | None = tree
        for _ in range(path.count(".") - root.count(".")):
            outer = self._trees.above.get(id(outer)) if outer else None
        return outer

    def _walk(self, tree: Tree | None, parts: Sequence[str], first: tuple[int, int]) -> Tree | None:
        for part in parts[:DEEPEST_PLACE]:
            if tree is None:
                return None
            children = self._children(tree).setdefault(part, [])
            if not children:
                name, kind = name_and_kind(part)
                children.append(Tree(name, tree.source, -1, first=first, kind=kind))
                tree.below.append(children[0])
                self._trees.above[id(children[0])] = tree
            tree = children[0] if len(children) == 1 else None
        return tree

    def _children(self, tree: Tree) -> dict[str, list[Tree]]:
        if id(tree) not in self._below:
            children = self._below[id(tree)] = {}
            for child in tree.below:
                if child.kind == MODULE:
                    children.setdefault(child.name, []).append(child)
        return self._below[id(tree)]


def _in_order(paths: Iterable[str]) -> list[str]:
    """Paths in the order in which their parts first come, but siblings that are numbered by their numbers."""
    rank: dict[str, int] = {}
    keys = {}
    for path in paths:
        parts = path.split(".")
        prefixes = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        keys[path] = [
            int(part) if _NUMBER.fullmatch(part) else rank.setdefault(prefix, len(rank))
            for part, prefix in zip(parts, prefixes, strict=True)
        ]
    return sorted(keys, key=keys.__getitem__)
