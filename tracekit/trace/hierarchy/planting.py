"""The modules of each process, out of its calls, as trees that can be joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.slices import distinct
from tracekit.trace.hierarchy.facts import NOTHING, common
from tracekit.trace.hierarchy.siblings import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.hierarchy.facts import Facts
    from tracekit.trace.hierarchy.namesakes import Called, Numbers, ToldApart


class Nodes(NamedTuple):
    """The modules that were called, each in its process.

    Attributes:
        process: The process.
        place: Which of the paths.
        which: What tells it from other modules of that path there.
        first_ns: When it was first called.
        first_call: Its first call.
        facts: What all its calls say of it together, and whether they contradict each other.
    """

    process: Ints
    place: Ints
    which: Ints
    first_ns: Ints
    first_call: Rows
    facts: list[tuple[Facts, bool]]


def nodes_of(calls: Called, apart: ToldApart, rows: Rows, start_ns: Ints, facts: Sequence[Facts]) -> tuple[Nodes, Ints]:
    """The modules of some calls, and for each of these its place among them."""
    places, ways = int(calls.place.max(initial=0)) + 1, len(apart.numbers)
    code = (calls.process[rows].astype(np.int64) * places + calls.place[rows]) * ways
    keys, node = distinct(code + apart.which[rows])
    first = np.full(keys.size, np.iinfo(np.int64).max)
    np.minimum.at(first, node, start_ns[rows])
    first_call = np.zeros(keys.size, dtype=np.int64)
    earliest = np.flatnonzero(start_ns[rows] == first[node])[::-1]
    first_call[node[earliest]] = rows[earliest]
    own = calls.placed[rows]
    pairs, _ = distinct(node[own] * len(facts) + calls.facts[rows[own]])
    said: list[list[Facts]] = [[] for _ in range(keys.size)]
    for one, which in np.stack(np.divmod(pairs, len(facts)), axis=1).tolist():
        said[one].append(facts[which])
    process, place = np.divmod(keys // ways, places)
    return Nodes(process, place, keys % ways, first, first_call, [*map(common, said)]), node


def trees(nodes: Nodes, paths: Sequence[str], numbers: Sequence[Numbers]) -> list[Tree]:
    """The roots of all processes, with all below and the containers between, in the order of first calls."""
    roots: list[Tree] = []
    known: dict[tuple[int, str, int], Tree] = {}
    process, place, which = (column.tolist() for column in nodes[:3])
    first_ns, first_call = nodes.first_ns.tolist(), nodes.first_call.tolist()
    for row in np.lexsort((nodes.first_call, nodes.first_ns)).tolist():
        told = dict(numbers[which[row]])
        above, siblings = -1 - process[row], roots
        found: Tree | None = None
        for parts, name in enumerate(paths[place[row]].split("."), 1):
            key = (above, name, told.get(parts, 0))
            if (found := known.get(key)) is None:
                first = first_ns[row], first_call[row]
                found = known[key] = Tree(name, process[row], -1, NOTHING, first=first)
                siblings.append(found)
            above, siblings = id(found), found.below
        assert found is not None
        found.row = row
        found.facts, found.differs = nodes.facts[row]
    return roots
