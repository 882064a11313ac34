"""The tree of modules: where each call stands in it, whatever its marker says.

A shared module carries the name under which it was registered first. So a marker's own path is believed only below
the call that encloses it; elsewhere the module stands where it ran, under its own last name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import by_level
from tracekit.causes import MODULE_UNCLEAR, MODULES_DIFFER, NESTED_TOO_DEEP, SHARED_PLACE
from tracekit.markers.base import ModuleMarker
from tracekit.trace.hierarchy.facts import NOTHING, facts_of
from tracekit.trace.hierarchy.forests import joined
from tracekit.trace.hierarchy.namesakes import Called, told_apart
from tracekit.trace.hierarchy.planting import nodes_of, trees

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.causes import Tally
    from tracekit.markers.base import Marker
    from tracekit.trace.hierarchy.facts import Facts
    from tracekit.trace.hierarchy.forests import Joint
    from tracekit.trace.hierarchy.planting import Nodes


#: Path of a root module that was registered with an empty name.
NAMELESS_ROOT = "(root)"
DEEPEST_PLACE = 512


@dataclass(slots=True)
class Module:
    """One module of the hierarchy.

    Attributes:
        path: Dotted path of its place.
        parent: Row of the module above, or -1.
        facts: What its markers say of it; nothing of a container that is never called itself.
        alias_of: The path that its marker says, where that is another.
        subtree_end: Row after its last descendant.
    """

    path: str
    parent: int
    facts: Facts
    alias_of: str | None
    subtree_end: int

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rsplit(".", 1)[-1]


class Nested(NamedTuple):
    """Calls, in the order of their starts on each thread.

    Attributes:
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose each one.
        marker: Row of the markers, or -1; what is no ModuleMarker stands for a call of an unknown module.
        process: Row of processes.
        start_ns: When each began.
    """

    parent: Ints
    depth: Ints
    marker: Ints
    process: Ints
    start_ns: Ints


class Hierarchy(NamedTuple):
    """The modules of all calls.

    Attributes:
        modules: The modules in pre-order.
        module: For every call its row in them; -1 where it is not known.
        unclear: Calls whose path stands for several modules, and which is not known.
    """

    modules: list[Module]
    module: Ints
    unclear: Flags


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
        self.pairs: list[tuple[str, str]] = []

    def row(self, above: int, marker: int, calls: int) -> int:
        """The row of the place of a marker's call (-1: none) below the place ``above`` (-1: none)."""
        found = self._markers[marker] if marker >= 0 else None
        if not isinstance(found, ModuleMarker):
            return above
        here = place(self.pairs[above] if above >= 0 else None, found.path)
        if above >= 0 and here.count(".") >= DEEPEST_PLACE:
            self._tally.add("calls", NESTED_TOO_DEEP, calls)
            return above
        # Below a region that names its class only, markers go on from what its surroundings said.
        around = self.pairs[above][1] if above >= 0 else ""
        key = (here, around if found.class_only else found.path)
        if key not in self._row:
            self._row[key] = len(self.pairs)
            self.pairs.append(key)
        return self._row[key]


def hierarchy(calls: Nested, markers: list[Marker], tally: Tally) -> Hierarchy:
    """The modules of all calls in pre-order, and the module of every call.

    Args:
        calls: The calls.
        markers: The distinct markers.
        tally: Where losses are counted.
    """
    places = _Places(markers, tally)
    at = _placed(calls.parent, calls.depth, calls.marker, len(markers), places)
    known = np.array([isinstance(found, ModuleMarker) for found in markers] + [False])[calls.marker]
    paths = list(dict.fromkeys(path for path, _ in places.pairs))
    number = {path: row for row, path in enumerate(paths)}
    said, facts = _facts(markers)
    words = _words(markers)[calls.marker]
    called = Called(
        parent=calls.parent,
        depth=calls.depth,
        process=calls.process,
        place=np.array([number[path] for path, _ in places.pairs] + [-1], dtype=np.int64)[at],
        placed=known & (at != np.append(at, -1)[calls.parent]),
        said=words,
        facts=said[calls.marker],
    )
    apart = told_apart(called, paths, facts)
    at_home = np.flatnonzero(known & ~apart.unclear)
    nodes, node = nodes_of(called, apart, at_home, calls.start_ns, facts)
    joint = joined(trees(nodes, paths, apart.numbers))
    row = np.full(nodes.place.size, -1, dtype=np.int64)
    for new, one in enumerate(joint):
        row[[tree.row for tree in one.same if tree.row >= 0]] = new
    module = np.full(known.size, -1, dtype=np.int64)
    module[at_home] = row[node]
    found = Hierarchy(
        [_module(one, _first_marker(one, nodes, calls, markers)) for one in joint],
        module,
        known & apart.unclear,
    )
    tally.add("calls", MODULE_UNCLEAR, int(found.unclear.sum()))
    tally.add("modules", MODULES_DIFFER, sum(one.differs for one in joint))
    tally.add("calls", SHARED_PLACE, _sharing(words, calls.start_ns, np.where(called.placed, module, -1)))
    return found


def _words(markers: list[Marker]) -> Ints:
    """A number for each marker, alike for those that say the same path."""
    numbers: dict[str, int] = {}
    said = [getattr(found, "path", "") for found in markers]
    return np.array([*(numbers.setdefault(path, len(numbers)) for path in said), -1])


def _facts(markers: list[Marker]) -> tuple[Ints, list[Facts]]:
    """What each marker says of its module, as a place among the distinct things that are said."""
    numbers: dict[Facts, int] = {NOTHING: 0}
    said = [
        numbers.setdefault(facts_of(found), len(numbers)) if isinstance(found, ModuleMarker) else 0 for found in markers
    ]
    return np.array([*said, 0], dtype=np.int64), list(numbers)


def _first_marker(joint: Joint, nodes: Nodes, calls: Nested, markers: list[Marker]) -> ModuleMarker | None:
    """The marker of its first call; None of a container that is never called itself."""
    called = [tree for tree in joint.same if tree.row >= 0]
    if not called:
        return None
    first = min(called, key=lambda tree: int(nodes.first_ns[tree.row]))
    marker = markers[calls.marker[nodes.first_call[first.row]]]
    return marker if isinstance(marker, ModuleMarker) else None


def _module(joint: Joint, marker: ModuleMarker | None) -> Module:
    here, place = (path.removeprefix(f"{NAMELESS_ROOT}.") for path in (joint.path, joint.place))
    # Of several modules of one path every one but the first has another path than its markers say, also a container.
    said = marker.path if marker and marker.path and not marker.class_only else None
    alias = None if said == here else said or (place if place != here else None)
    return Module(joint.path, joint.parent, joint.facts, alias, joint.subtree_end)


def _sharing(said: Ints, start_ns: Ints, module: Ints) -> int:
    """How many calls are of modules whose markers say other paths than that of the first call at their place."""
    rows = np.flatnonzero(module >= 0)
    modules = int(module.max(initial=-1)) + 1
    least, most = np.full(modules, said.size), np.full(modules, -1)
    np.minimum.at(least, module[rows], said[rows])
    np.maximum.at(most, module[rows], said[rows])
    rows = rows[(least < most)[module[rows]]]
    if not rows.size:
        return 0
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    shared, first = np.unique(module[rows], return_index=True)
    least[shared] = said[rows[first]]
    return int((least[module[rows]] != said[rows]).sum())


def _placed(parent: Ints, depth: Ints, marker: Ints, markers: int, places: _Places) -> Ints:
    """The row of the place of every call; a call of an unknown module passes on the place above it."""
    at = np.full(parent.size, -1, dtype=np.int64)
    for calls in by_level(depth):
        above = np.where(parent[calls] >= 0, at[parent[calls]], -1)
        keys, which, counts = np.unique(
            (above + 1) * (markers + 1) + marker[calls] + 1, return_inverse=True, return_counts=True
        )
        found = [
            places.row(key // (markers + 1) - 1, key % (markers + 1) - 1, count)
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
        ]
        at[calls] = np.asarray(found, dtype=np.int64)[which]
    return at
