"""Joins the modules of several processes, or reports, into one hierarchy: which are the same, their order and names.

A path is one module in whichever processes it ran: ranks hold parts of it, of different sizes. Only where one process
has several modules of a path are there several: the second is named ``top~2``, and so on; names that are taken are
skipped. The order of the processes, or reports, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.trace.hierarchy.contradictions import clusters, parted
from tracekit.trace.hierarchy.facts import common, same
from tracekit.trace.hierarchy.siblings import Group, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.trace.hierarchy.facts import Facts
    from tracekit.trace.hierarchy.siblings import Tree

#: More modules than these under one path are not compared: each process keeps its own.
_MOST_MODULES = 64


@dataclass(slots=True)
class Joint:
    """A module of the joint hierarchy.

    Attributes:
        path: Its unique path.
        name: The last part of its path.
        kind: What it is: one of ``markers.kinds.KINDS``.
        place: The path without the numbers that tell modules of one path apart.
        parent: Row of the module above, or -1.
        same: The modules of the sources that it joins.
        facts: What they have in common.
        differs: Whether they contradict each other, or some of them may be another module of that path.
        subtree_end: Row after its last descendant.
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


def joined(roots: list[Tree]) -> list[Joint]:
    """The modules of all sources in pre-order."""
    joints: list[Joint] = []
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
        below = [tree for member in group.members for tree in member.below]
        pending.append(row)
        pending += _reversed_siblings(below, row)
    return joints


def _joint(name: str, group: Group, above: Joint | None, parent: int, taken: set[str]) -> Joint:
    place = f"{above.place}.{group.name}" if above else group.name
    around = f"{above.path}." if above else ""
    # A name that holds dots may spell the path of another.
    number = 1
    while (path := f"{around}{name}" if number == 1 else f"{around}{name}~{number}") in taken:
        number += 1
    taken.add(path)
    facts, differs = common(dict.fromkeys(tree.facts for tree in group.members))
    differs |= group.unclear or any(tree.differs for tree in group.members)
    return Joint(path, path[len(around) :], group.members[0].kind, place, parent, group.members, facts, differs)


def _reversed_siblings(trees: list[Tree], parent: int) -> Iterator[tuple[int, str, Group]]:
    """The modules right below one module, last first: row of that module, name and group of each."""
    by_name: dict[tuple[str, str], list[Tree]] = {}
    for tree in trees:
        by_name.setdefault((tree.name, tree.kind), []).append(tree)
    groups: list[Group] = []
    for (name, _), members in by_name.items():
        one_per_source = len({tree.source for tree in members}) == len(members)
        groups += [Group(name, members)] if one_per_source else _groups_of_name(name, members)
    groups = in_order(groups, _spelled)
    return ((parent, name, group) for name, group in reversed([*zip(_names(groups), groups, strict=True)]))


def _names(groups: list[Group]) -> list[str]:
    """The names of siblings; the second of a name gets a number that makes it unique."""
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
    """Paths and facts of a module and all below it, without paths that stand for several modules."""
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
    """Puts modules of one number together; two of one source stay apart, since that source tells them apart."""
    groups: dict[tuple[int, int], list[Tree]] = {}
    for tree, number in zip(members, numbers, strict=True):
        copy = 0
        while any(other.source == tree.source for other in groups.get((number, copy), ())):
            copy += 1
        groups.setdefault((number, copy), []).append(tree)
    return list(groups.values())


def _parts(evidence: list[dict[str, Facts]]) -> list[int]:
    """A number for each tree, the same for trees that can be one module with all below it; -1 if several fit.

    Args:
        evidence: For each tree its facts by path.
    """
    cluster = _clusters_by_path(evidence)
    contested = {path: row for row, path in enumerate(sorted(cluster)) if max(cluster[path].values()) > 0}
    tokens = [
        {
            contested[path]: cluster[path][facts]
            for path, facts in paths.items()
            if path in contested and cluster[path][facts] >= 0
        }
        for paths in evidence
    ]
    numbers = parted(tokens, _MOST_MODULES)
    return list(range(len(evidence))) if numbers is None else numbers


def _clusters_by_path(evidence: list[dict[str, Facts]]) -> dict[str, dict[Facts, int]]:
    """For every path and each of its facts a number, the same for facts that do not contradict each other."""
    cluster: dict[str, dict[Facts, int]] = {}
    for paths in evidence:
        for path, facts in paths.items():
            cluster.setdefault(path, {})[facts] = 0
    for of_path in cluster.values():
        distinct = sorted(of_path, key=repr)
        of_path.update(zip(distinct, clusters(distinct, same), strict=True))
    return cluster


def _spelled(group: Group) -> str:
    """The facts of a module and all below it as a text that does not depend on the order of the sources."""
    return repr(sorted({(path, repr(facts)) for tree in group.members for path, facts in _below(tree, "")}))
