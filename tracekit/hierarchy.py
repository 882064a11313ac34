"""The tree of modules: where each call stands in it, whatever its marker says.

A shared module carries the name under which it was registered first. So a marker's own path is believed only below
the call that encloses it; elsewhere the module stands where it ran, under its own last name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracekit.coverage import NESTED_TOO_DEEP, SHARED_PLACE
from tracekit.intervals import by_level
from tracekit.markers.base import ModuleMarker

if TYPE_CHECKING:
    from tracekit.arrays import Ints
    from tracekit.coverage import Tally
    from tracekit.markers.base import Marker


#: Path of a root module that was registered with an empty name.
NAMELESS_ROOT = "(root)"
DEEPEST_PLACE = 512


@dataclass(slots=True)
class Module:
    """One module of the hierarchy; a container that is never called itself has no marker.

    Attributes:
        path: Dotted path of its place.
        parent: Row of the module above, or -1.
        marker: The first marker seen of it.
        alias_of: The path that the marker said, where that is another.
        first: Order of its first appearance, which orders siblings.
        subtree_end: Row after its last descendant.
    """

    path: str
    parent: int
    marker: ModuleMarker | None = None
    alias_of: str | None = None
    first: int = 0
    subtree_end: int = 0
    children: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rsplit(".", 1)[-1]


def place(above: tuple[str, str] | None, said: str) -> str:
    """Where a call stands whose marker says the path ``said``.

    Args:
        above: Place of the enclosing call and the path that its marker said; None outside of every call.
        said: The path that the marker says.
    """
    if above is None:
        return said or NAMELESS_ROOT
    enclosing, enclosing_said = above
    below = f"{enclosing_said}." if enclosing_said else ""
    if said.startswith(below) and said != enclosing_said:
        return f"{enclosing}.{said[len(below) :]}"
    return f"{enclosing}.{said.rsplit('.', 1)[-1] or NAMELESS_ROOT}"


class _Places:
    """The distinct places of calls, as (place, said) pairs, filled level by level."""

    def __init__(self, markers: list[Marker], tally: Tally) -> None:
        self._markers = markers
        self._tally = tally
        self._row: dict[tuple[str, str], int] = {}
        self._said: dict[str, str] = {}
        self.pairs: list[tuple[str, str]] = []

    def row(self, above: int, marker: int, calls: int) -> int:
        """The row of the place of a marker's call below the place ``above`` (-1: none)."""
        found = self._markers[marker]
        if not isinstance(found, ModuleMarker):
            return above
        here = place(self.pairs[above] if above >= 0 else None, found.path)
        if above >= 0 and here.count(".") >= DEEPEST_PLACE:
            self._tally.add("calls", NESTED_TOO_DEEP, calls)
            return above
        # Below a region that names its class only, markers go on from what its surroundings said.
        around = self.pairs[above][1] if above >= 0 else ""
        key = (here, around if found.class_only else found.path)
        if self._said.setdefault(here, found.path) != found.path:
            self._tally.add("calls", SHARED_PLACE, calls)
        if key not in self._row:
            self._row[key] = len(self.pairs)
            self.pairs.append(key)
        return self._row[key]


def hierarchy(
    parent: Ints, depth: Ints, marker: Ints, markers: list[Marker], tally: Tally
) -> tuple[list[Module], Ints]:
    """The modules of all calls in pre-order, and the module of every call.

    Args:
        parent: Row of the enclosing call, or -1; calls are in the order of their starts on each thread.
        depth: How many calls enclose each one.
        marker: Row in ``markers`` of every call.
        markers: The distinct markers; those that are no ModuleMarker stand for calls of unknown modules.
        tally: Where losses are counted.

    Returns:
        The modules, and for every call its row in them; -1 where the module is not known.
    """
    places = _Places(markers, tally)
    at = _placed(parent, depth, marker, len(markers), places)
    known = np.array([isinstance(found, ModuleMarker) for found in markers] + [False])[marker]
    calls = np.flatnonzero(known)
    seen, first = np.unique(at[calls], return_index=True)
    forest: dict[str, Module] = {}
    for row, call in sorted(
        zip(seen.tolist(), calls[first].tolist(), strict=True), key=lambda item: item[1]
    ):
        _grow(forest, places.pairs[row][0], markers[marker[call]], call)
    modules, order = preorder(forest)
    module_of_place = np.array([order[path] for path, _ in places.pairs] + [-1], dtype=np.int64)
    return modules, np.where(known, module_of_place[at], -1)


def _placed(parent: Ints, depth: Ints, marker: Ints, markers: int, places: _Places) -> Ints:
    """The row of the place of every call; a call of an unknown module passes on the place above it."""
    at = np.full(parent.size, -1, dtype=np.int64)
    for calls in by_level(depth):
        above = np.where(parent[calls] >= 0, at[parent[calls]], -1)
        keys, which, counts = np.unique(
            (above + 1) * markers + marker[calls], return_inverse=True, return_counts=True
        )
        found = [
            places.row(key // markers - 1, key % markers, count)
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
        ]
        at[calls] = np.asarray(found, dtype=np.int64)[which]
    return at


def _grow(forest: dict[str, Module], path: str, marker: Marker, call: int) -> None:
    """Adds a module that was called, and the containers above it."""
    parts = path.split(".")
    for length in range(1, len(parts) + 1):
        forest.setdefault(
            ".".join(parts[:length]), Module(".".join(parts[:length]), -1, first=call)
        )
    module = forest[path]
    if isinstance(marker, ModuleMarker) and module.marker is None:
        module.marker = marker
        here = path.removeprefix(f"{NAMELESS_ROOT}.")
        module.alias_of = None if marker.class_only or marker.path in ("", here) else marker.path


def preorder(forest: dict[str, Module]) -> tuple[list[Module], dict[str, int]]:
    """The modules by their paths in pre-order, siblings by first appearance; and the row of every path."""
    below: dict[str, list[str]] = {}
    for path in forest:
        below.setdefault(path.rpartition(".")[0], []).append(path)
    modules: list[Module] = []
    order: dict[str, int] = {}
    stack = [(path, False) for path in _reversed_by_first(forest, below.get("", []))]
    while stack:
        path, done = stack.pop()
        if done:
            modules[order[path]].subtree_end = len(modules)
            continue
        module = forest[path]
        module.parent = order.get(path.rpartition(".")[0], -1)
        order[path] = len(modules)
        modules.append(module)
        stack.append((path, True))
        stack += [(child, False) for child in _reversed_by_first(forest, below.get(path, []))]
    return modules, order


def _reversed_by_first(forest: dict[str, Module], paths: list[str]) -> list[str]:
    return sorted(paths, key=lambda path: forest[path].first, reverse=True)
