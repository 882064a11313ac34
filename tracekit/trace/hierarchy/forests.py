"""The modules of several processes, or reports, as one hierarchy: which are the same, in what order, by what names.

A path is one module, whichever processes it ran in: ranks hold parts of it, and say other sizes of these. Only where
one process knows several modules of a path there are several: the second is ``top~2``, and so on, wherever no module
is called so. The order of the processes, or reports, changes nothing.
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
    """A module of all of them.

    Attributes:
        path: Its path, like no other.
        place: The same without numbers that tell modules of one path apart.
        parent: Row of the module above, or -1.
        same: Which modules it is.
        facts: What they have in common.
        differs: Whether they contradict each other, or nothing says which of several modules some of them are.
        subtree_end: Row after its last descendant.
    """

    path: str
    place: str
    parent: int
    same: list[Tree]
    facts: Facts
    differs: bool
    subtree_end: int = 0


def joined(roots: list[Tree]) -> list[Joint]:
    """The modules of all sources in pre-order."""
    found: list[Joint] = []
    pending: list[tuple[int, str, Group] | int] = [*_reversed_siblings(roots, -1)]
    while pending:
        entry = pending.pop()
        if isinstance(entry, int):
            found[entry].subtree_end = len(found)
            continue
        parent, name, group = entry
        above = found[parent] if parent >= 0 else None
        facts, differs = common(dict.fromkeys(one.facts for one in group.members))
        row = len(found)
        place = f"{above.place}.{group.name}" if above else group.name
        path = f"{above.path}.{name}" if above else name
        differs |= group.unclear or any(one.differs for one in group.members)
        found.append(Joint(path, place, parent, group.members, facts, differs))
        below = [one for member in group.members for one in member.below]
        pending.append(row)
        pending += _reversed_siblings(below, row)
    return found


def _reversed_siblings(trees: list[Tree], parent: int) -> Iterator[tuple[int, str, Group]]:
    """What stands below one module, the last first."""
    by_name: dict[str, list[Tree]] = {}
    for one in trees:
        by_name.setdefault(one.name, []).append(one)
    groups: list[Group] = []
    for name, members in by_name.items():
        sources = len({one.source for one in members})
        alone = sources == len(members)
        groups += [Group(name, members)] if alone else _told_apart(name, members)
    groups = in_order(groups, _spelled)
    return ((parent, name, group) for name, group in reversed([*zip(_names(groups), groups, strict=True)]))


def _names(groups: list[Group]) -> list[str]:
    """The names of siblings; a second one of a name has a number behind that makes it like no other."""
    taken = {group.name for group in groups}
    often: Counter[str] = Counter()
    names = []
    for group in groups:
        often[group.name] += 1
        name = group.name
        if often[name] > 1:
            while (name := f"{group.name}~{often[group.name]}") in taken:
                often[group.name] += 1
            taken.add(name)
        names.append(name)
    return names


def _below(root: Tree, path: str) -> Iterator[tuple[str, Facts]]:
    """The paths of a module and all below it, with what is said of them; no path that stands for several modules."""
    pending = [(path, root)]
    while pending:
        path, one = pending.pop()
        yield path, one.facts
        often = Counter(child.name for child in one.below)
        pending += [(f"{path}.{c.name}", c) for c in one.below if often[c.name] == 1]


def _told_apart(name: str, members: list[Tree]) -> list[Group]:
    """The modules that several of one name are: those of different sources that can be the same are."""
    if len({one.source for one in members}) == 1:
        return [Group(name, [one]) for one in members]
    numbers = _parts([dict(_below(one, name)) for one in members])
    unclear = {id(one) for one, number in zip(members, numbers, strict=True) if number < 0}
    return [Group(name, its, any(id(one) in unclear for one in its)) for its in _grouped(members, numbers)]


def _grouped(members: list[Tree], numbers: list[int]) -> list[list[Tree]]:
    """Those of one number together; two of one source stay apart, for there they are."""
    groups: dict[tuple[int, int], list[Tree]] = {}
    for one, number in zip(members, numbers, strict=True):
        copy = 0
        while any(other.source == one.source for other in groups.get((number, copy), ())):
            copy += 1
        groups.setdefault((number, copy), []).append(one)
    return list(groups.values())


def _parts(evidence: list[dict[str, Facts]]) -> list[int]:
    """A number for each, alike for those that can be the same module with all below; -1 for those that fit several."""
    said: dict[str, dict[Facts, int]] = {}
    for paths in evidence:
        for path, facts in paths.items():
            said.setdefault(path, {})[facts] = 0
    numbers = {path: at for at, path in enumerate(sorted(said))}
    for of_path in said.values():
        distinct = sorted(of_path, key=repr)
        of_path.update(zip(distinct, clusters(distinct, same), strict=True))
    contested = {path for path, of_path in said.items() if max(of_path.values()) > 0}
    tokens = [
        {
            numbers[path]: said[path][facts]
            for path, facts in paths.items()
            if path in contested and said[path][facts] >= 0
        }
        for paths in evidence
    ]
    found = parted(tokens, _MOST_MODULES)
    return list(range(len(evidence))) if found is None else found


def _spelled(group: Group) -> str:
    """What is said of a module and those below, the same in whatever order the sources come."""
    return repr(sorted({(p, repr(f)) for one in group.members for p, f in _below(one, "")}))
