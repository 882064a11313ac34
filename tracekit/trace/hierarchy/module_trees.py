"""Trees of the modules of each process, and the one hierarchy that they are merged into, in order."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import distinct, minima
from tracekit.arrays.types import Ints, Rows
from tracekit.markers.base import MODULE
from tracekit.trace.hierarchy.module_paths import name_and_kind
from tracekit.trace.hierarchy.path_collisions import (
    NOTHING,
    Called,
    Facts,
    Numbers,
    PathCollisions,
    clusters,
    common,
    same,
    split_conflicting,
)


@dataclass(slots=True)
class Tree:
    """A module as one process or report knows it, with the modules below it.

    Attributes:
        name: Last part of its path, without a number that distinguishes it from others.
        row: Row of the module there; -1 for a container that is never called.
        differs: Whether its own calls contradict each other about it.
        first: When it, or a module below it, was first called, by a clock that all sources share; None without one.
    """

    name: str
    source: int
    row: int
    facts: Facts = NOTHING
    differs: bool = False
    first: tuple[int, int] | None = None
    below: list[Tree] = field(default_factory=list)
    kind: str = MODULE


@dataclass(slots=True)
class Group:
    """Modules of several sources that are one; ``unclear`` if some of them could also be other modules of that name."""

    name: str
    members: list[Tree]
    unclear: bool = False

    @property
    def first(self) -> tuple[int, int]:
        """When it was first called."""
        return min(tree.first for tree in self.members if tree.first is not None)


class Nodes(NamedTuple):
    """The modules that were called, each in its process.

    Attributes:
        which: Row of ``PathCollisions.numbers``, which distinguish it from other modules of that path.
        facts: What all its calls record about it together, and whether they contradict each other.
    """

    process: Ints
    place: Ints
    which: Ints
    first_ns: Ints
    first_call: Rows
    facts: list[tuple[Facts, bool]]


def nodes_of(
    calls: Called, namesakes: PathCollisions, rows: Rows, start_ns: Ints, facts: Sequence[Facts]
) -> tuple[Nodes, Ints]:
    """The modules of the calls in ``rows``, and for each of these calls the row of its module."""
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


class ModuleTrees(NamedTuple):
    """Trees of modules, that of every node, and by the identity of each the one above it; None above a root."""

    roots: list[Tree]
    of_node: dict[int, Tree]
    above: dict[int, Tree | None]


def trees(nodes: Nodes, paths: Sequence[str], numbers: Sequence[Numbers]) -> ModuleTrees:
    """The roots of all processes with everything below them, containers included, in the order of first calls."""
    found = ModuleTrees([], {}, {})
    known: dict[tuple[int, str, Numbers], Tree] = {}
    process, place, which = (column.tolist() for column in nodes[:3])
    first_ns, first_call = nodes.first_ns.tolist(), nodes.first_call.tolist()
    for row in np.lexsort((nodes.first_call, nodes.first_ns)).tolist():
        path, own, unknown = paths[place[row]], numbers[which[row]], []
        outer: Tree | None = None
        # From the module up to the innermost tree that is known.
        while (key := (process[row], path, own)) not in known:
            path, dot, part = path.rpartition(".")
            unknown.append((key, part))
            if not dot:
                break
            own = own and tuple(number for number in own if number[0] <= path.count(".") + 1)
        else:
            outer = known[key]
        for key, part in reversed(unknown):
            name, kind = name_and_kind(part)
            tree = known[key] = Tree(name, key[0], -1, first=(first_ns[row], first_call[row]), kind=kind)
            (found.roots if outer is None else outer.below).append(tree)
            found.above[id(tree)] = outer
            outer = tree
        assert outer is not None
        outer.row = row
        outer.facts, outer.differs = nodes.facts[row]
        found.of_node[row] = outer
    return found


#: More modules than these under one path are not compared: each process keeps its own.
_MOST_MODULES = 64


@dataclass(slots=True)
class MergedModule:
    """A module of the joint hierarchy.

    Attributes:
        place: The path without the numbers that distinguish modules of one path.
        parent: Row of the module above, or -1.
        same: The modules of the sources that it joins.
        differs: Whether they contradict each other, or some of them may be another module of that path.
    """

    path: str
    name: str
    kind: str
    place: str
    parent: int
    same: list[Tree]
    facts: Facts
    differs: bool
    subtree_end: int = 0


def merge_hierarchies(roots: list[Tree]) -> list[MergedModule]:
    """The modules of all sources in pre-order."""
    joints: list[MergedModule] = []
    taken: set[str] = set()
    pending: list[tuple[int, str, Group] | int] = [*_reversed_siblings(roots, -1)]
    while pending:
        entry = pending.pop()
        if isinstance(entry, int):
            joints[entry].subtree_end = len(joints)
            continue
        parent, name, group = entry
        row = len(joints)
        joints.append(_joint(name, group, joints[parent] if parent >= 0 else None, parent, taken))
        if below := [tree for member in group.members for tree in member.below]:
            pending.append(row)
            pending += _reversed_siblings(below, row)
        else:
            joints[row].subtree_end = len(joints)
    return joints


def _joint(name: str, group: Group, above: MergedModule | None, parent: int, taken: set[str]) -> MergedModule:
    place = f"{above.place}.{group.name}" if above else group.name
    around = f"{above.path}." if above else ""
    # A name that holds dots may spell the path of another.
    number = 1
    while (path := f"{around}{name}" if number == 1 else f"{around}{name}~{number}") in taken:
        number += 1
    taken.add(path)
    members = group.members
    facts, differs = members[0].facts, members[0].differs or group.unclear
    if len(members) > 1:
        facts, differ = common(dict.fromkeys(tree.facts for tree in members))
        differs |= differ or any(tree.differs for tree in members)
    return MergedModule(path, path[len(around) :], members[0].kind, place, parent, members, facts, differs)


def _reversed_siblings(trees: list[Tree], parent: int) -> Iterator[tuple[int, str, Group]]:
    by_name: dict[tuple[str, str], list[Tree]] = {}
    for tree in trees:
        by_name.setdefault((tree.name, tree.kind), []).append(tree)
    groups: list[Group] = []
    for (name, _), members in by_name.items():
        one_per_source = len(members) == 1 or len({tree.source for tree in members}) == len(members)
        groups += [Group(name, members)] if one_per_source else _groups_of_name(name, members)
    groups = _in_order(groups)
    return ((parent, name, group) for name, group in reversed([*zip(_names(groups), groups, strict=True)]))


def _names(groups: list[Group]) -> list[str]:
    taken = {group.name for group in groups}
    count: Counter[str] = Counter()
    names = []
    for group in groups:
        count[group.name] += 1
        name = group.name
        if count[name] > 1:
            while (name := f"{group.name}~{count[group.name]}") in taken:
                count[group.name] += 1
            taken.add(name)
        names.append(name)
    return names


def _below(root: Tree, path: str) -> Iterator[tuple[str, Facts]]:
    pending = [(path, root)]
    while pending:
        path, tree = pending.pop()
        yield path, tree.facts
        count = Counter(child.name for child in tree.below)
        pending += [(f"{path}.{child.name}", child) for child in tree.below if count[child.name] == 1]


def _groups_of_name(name: str, members: list[Tree]) -> list[Group]:
    """Groups of modules of one name: modules of different sources are one if they can be."""
    if len({tree.source for tree in members}) == 1:
        return [Group(name, [tree]) for tree in members]
    numbers = _parts([dict(_below(tree, name)) for tree in members])
    unclear = {id(tree) for tree, number in zip(members, numbers, strict=True) if number < 0}
    groups = _grouped(members, numbers)
    return [Group(name, trees, any(id(tree) in unclear for tree in trees)) for trees in groups]


def _grouped(members: list[Tree], numbers: list[int]) -> list[list[Tree]]:
    """Puts modules of one number together; two of one source stay apart, since that source distinguishes them."""
    groups: dict[tuple[int, int], list[Tree]] = {}
    for tree, number in zip(members, numbers, strict=True):
        copy = 0
        while any(other.source == tree.source for other in groups.get((number, copy), ())):
            copy += 1
        groups.setdefault((number, copy), []).append(tree)
    return list(groups.values())


def _parts(evidence: list[dict[str, Facts]]) -> list[int]:
    """A number for each tree, the same for trees that can be one module with all below it; -1 if several fit."""
    # For every path and each of its facts a number, the same for facts that do not contradict each other.
    cluster: dict[str, dict[Facts, int]] = {}
    for paths in evidence:
        for path, facts in paths.items():
            cluster.setdefault(path, {})[facts] = 0
    for of_path in cluster.values():
        several = sorted(of_path, key=repr)
        of_path.update(zip(several, clusters(several, same), strict=True))
    contested = {path: row for row, path in enumerate(sorted(cluster)) if max(cluster[path].values()) > 0}
    tokens = [
        {
            contested[path]: cluster[path][facts]
            for path, facts in paths.items()
            if path in contested and cluster[path][facts] >= 0
        }
        for paths in evidence
    ]
    numbers = split_conflicting(tokens, _MOST_MODULES)
    return list(range(len(evidence))) if numbers is None else numbers


def _spelled(group: Group) -> str:
    """The facts of a module and all below it as a text that does not depend on the order of the sources."""
    return repr(sorted({(path, repr(facts)) for tree in group.members for path, facts in _below(tree, "")}))


_DIGITS = re.compile(r"(\d+)")


def _in_order(groups: list[Group]) -> list[Group]:
    """Siblings by their first calls if one clock times them all, otherwise in the order of the sources."""
    if all(tree.first is not None for group in groups for tree in group.members):
        return _by_number(sorted(groups, key=lambda group: group.first))
    return _as_in_sources(groups)


def _by_number(groups: list[Group]) -> list[Group]:
    """Numbered siblings by their numbers, unless a process called them in another order, as pipeline stages are."""
    numbered = [place for place, group in enumerate(groups) if group.name.isascii() and group.name.isdigit()]
    numbers = [int(groups[place].name) for place in numbered]
    if numbers == sorted(numbers):
        return groups
    trees = [tree for place in numbered for tree in groups[place].members]
    calls = sorted((tree.source, tree.first or (0, 0), int(tree.name)) for tree in trees)
    for (source, _, number), (other, _, following) in pairwise(calls):
        if source == other and number > following:
            return groups
    ordered = list(groups)
    by_number = sorted((groups[place] for place in numbered), key=lambda group: int(group.name))
    for place, group in zip(numbered, by_number, strict=True):
        ordered[place] = group
    return ordered


def _as_in_sources(groups: list[Group]) -> list[Group]:
    """Merges the orders of all sources; siblings that no source orders, and all if sources contradict, go by name."""
    count = Counter(group.name for group in groups)
    keys = [(_natural(group.name), _spelled(group) if count[group.name] > 1 else "") for group in groups]
    by_name = sorted(range(len(groups)), key=keys.__getitem__)
    rank = {place: number for number, place in enumerate(by_name)}
    sorter = TopologicalSorter(dict.fromkeys(by_name, ()))
    by_source: dict[int, list[tuple[int, int]]] = {}
    for place, group in enumerate(groups):
        for tree in group.members:
            by_source.setdefault(tree.source, []).append((tree.row, place))
    for rows in by_source.values():
        for (_, earlier), (_, later) in pairwise(sorted(rows)):
            sorter.add(later, earlier)
    try:
        sorter.prepare()
    except CycleError:
        return [groups[place] for place in by_name]
    free: list[int] = []
    ordered: list[Group] = []
    while sorter.is_active():
        for place in sorter.get_ready():
            heapq.heappush(free, rank[place])
        place = by_name[heapq.heappop(free)]
        ordered.append(groups[place])
        sorter.done(place)
    return ordered


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(name) if part]
