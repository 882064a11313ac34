"""Trees of the modules of each process, made from its calls, ready to be joined into one hierarchy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import distinct, minima
from tracekit.trace.hierarchy.facts import NOTHING, common
from tracekit.trace.hierarchy.parts import name_and_kind
from tracekit.trace.hierarchy.siblings import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.hierarchy.facts import Facts
    from tracekit.trace.hierarchy.namesakes import Called, Namesakes, Numbers


class Nodes(NamedTuple):
    """The modules that were called, each in its process.

    Attributes:
        process: Row of processes.
        place: Row of the paths.
        which: Row of ``Namesakes.numbers``, which tell it from other modules of that path.
        first_ns: When it was first called.
        first_call: Row of its first call.
        facts: What all its calls say of it together, and whether they contradict each other.
    """

    process: Ints
    place: Ints
    which: Ints
    first_ns: Ints
    first_call: Rows
    facts: list[tuple[Facts, bool]]


def nodes_of(
    calls: Called, namesakes: Namesakes, rows: Rows, start_ns: Ints, facts: Sequence[Facts]
) -> tuple[Nodes, Ints]:
    """The modules of some calls, and for each of these calls the row of its module.

    Args:
        calls: All calls.
        namesakes: Which module of its path each call is of.
        rows: The calls to look at.
        start_ns: When each call began.
        facts: The distinct facts.
    """
    places, ways = int(calls.place.max(initial=0)) + 1, len(namesakes.numbers)
    code = (calls.process[rows].astype(np.int64) * places + calls.place[rows]) * ways
    keys, node = distinct(code + namesakes.which[rows])
    began = start_ns[rows]
    first = minima(node, began, keys.size)
    first_call = np.zeros(keys.size, dtype=np.int64)
    earliest = np.flatnonzero(began == first[node])[::-1]
    first_call[node[earliest]] = rows[earliest]
    own = calls.placed[rows]
    pairs, _ = distinct(node[own] * len(facts) + calls.facts[rows[own]])
    node_facts: list[list[Facts]] = [[] for _ in range(keys.size)]
    for row, fact in np.stack(np.divmod(pairs, len(facts)), axis=1).tolist():
        node_facts[row].append(facts[fact])
    process, place = np.divmod(keys // ways, places)
    return Nodes(process, place, keys % ways, first, first_call, [*map(common, node_facts)]), node


class Woods(NamedTuple):
    """Trees of modules.

    Attributes:
        roots: The roots of all processes, in the order of first calls.
        of_node: The tree of every node.
        above: By the identity of each tree the one above it; None above a root.
    """

    roots: list[Tree]
    of_node: list[Tree]
    above: dict[int, Tree | None]


def trees(nodes: Nodes, paths: Sequence[str], numbers: Sequence[Numbers]) -> Woods:
    """The roots of all processes with everything below them, containers included, in the order of first calls.

    Args:
        nodes: The modules that were called.
        paths: The paths of places.
        numbers: What tells the modules of one path apart.
    """
    woods = Woods([], [], {})
    by_row: dict[int, Tree] = {}
    known: dict[tuple[int, str, int], Tree] = {}
    process, place, which = (column.tolist() for column in nodes[:3])
    first_ns, first_call = nodes.first_ns.tolist(), nodes.first_call.tolist()
    for row in np.lexsort((nodes.first_call, nodes.first_ns)).tolist():
        number_at = dict(numbers[which[row]])
        above, siblings = -1 - process[row], woods.roots
        tree: Tree | None = None
        outer: Tree | None = None
        for parts, part in enumerate(paths[place[row]].split("."), 1):
            key = (above, part, number_at.get(parts, 0))
            if (tree := known.get(key)) is None:
                first = first_ns[row], first_call[row]
                name, kind = name_and_kind(part)
                tree = known[key] = Tree(name, process[row], -1, NOTHING, first=first, kind=kind)
                siblings.append(tree)
            woods.above[id(tree)] = outer
            above, siblings, outer = id(tree), tree.below, tree
        assert tree is not None
        tree.row = row
        tree.facts, tree.differs = nodes.facts[row]
        by_row[row] = tree
    woods.of_node.extend(by_row[row] for row in range(len(by_row)))
    return woods
