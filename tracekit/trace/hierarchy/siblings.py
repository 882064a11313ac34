"""The order of siblings in the hierarchy: natural to the reader, and independent of the order of the sources."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from tracekit.markers.kinds import MODULE
from tracekit.trace.hierarchy.facts import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.trace.hierarchy.facts import Facts

_DIGITS = re.compile(r"(\d+)")


@dataclass(slots=True)
class Tree:
    """A module as one process or report knows it, with the modules below it.

    Attributes:
        name: Last part of its path, without a number that tells it from others.
        source: Number of the process or report.
        row: Row of the module there; -1 for a container that is never called.
        facts: What its markers say of it.
        differs: Whether its own calls contradict each other about it.
        first: When it, or a module below it, was first called, by a clock that all sources share; None without one.
        below: The modules below, in the order of their first calls.
        kind: What it is: one of ``markers.kinds.KINDS``.
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
    """Modules of several sources that are one and the same.

    Attributes:
        name: Their name.
        members: The modules.
        unclear: Whether some of them could also be other modules of that name.
    """

    name: str
    members: list[Tree]
    unclear: bool = False

    @property
    def first(self) -> tuple[int, int]:
        """When it was first called."""
        return min(tree.first for tree in self.members if tree.first is not None)


def in_order(groups: list[Group], spelled: Callable[[Group], str]) -> list[Group]:
    """Siblings by their first calls if one clock times them all, else in the order of the sources.

    Args:
        groups: The siblings.
        spelled: A text that tells siblings of one name apart.
    """
    timed = all(tree.first is not None for group in groups for tree in group.members)
    return _by_number(_by_time(groups)) if timed else _as_in_sources(groups, _keys(groups, spelled))


def _by_time(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: group.first)


def _by_number(groups: list[Group]) -> list[Group]:
    """Numbered siblings by their numbers, unless a process called them in another order, as pipeline stages are."""
    numbered = [place for place, group in enumerate(groups) if _is_number(group.name)]
    by_source: dict[int, list[tuple[tuple[int, int] | None, int]]] = {}
    for place in numbered:
        for tree in groups[place].members:
            by_source.setdefault(tree.source, []).append((tree.first, int(tree.name)))
    for calls in by_source.values():
        numbers = [number for _, number in sorted(calls, key=lambda call: call[0] or (0, 0))]
        if numbers != sorted(numbers):
            return groups
    ordered = list(groups)
    by_number = sorted((groups[place] for place in numbered), key=lambda group: int(group.name))
    for place, group in zip(numbered, by_number, strict=True):
        ordered[place] = group
    return ordered


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _as_in_sources(groups: list[Group], keys: list[tuple[object, ...]]) -> list[Group]:
    """Merges the orders of all sources; siblings that no source orders go by name, numbers by their size."""
    after: list[set[int]] = [set() for _ in groups]
    waits = [0] * len(groups)
    for earlier, later in _neighbours(groups):
        if later not in after[earlier]:
            after[earlier].add(later)
            waits[later] += 1
    by_name = sorted(range(len(groups)), key=keys.__getitem__)
    rank = {place: number for number, place in enumerate(by_name)}
    free = [rank[place] for place in by_name if not waits[place]]
    ordered: dict[int, Group] = {}
    for first in by_name:
        while free or first not in ordered:
            # Where nothing is free any more, sources contradict each other: continue with the first by name.
            place = by_name[heapq.heappop(free)] if free else first
            ordered[place] = groups[place]
            for later in after[place]:
                waits[later] -= 1
            for later in (next_ for next_ in after[place] if not waits[next_] and next_ not in ordered):
                heapq.heappush(free, rank[later])
    return [*ordered.values()]


def _neighbours(groups: list[Group]) -> Iterable[tuple[int, int]]:
    """Pairs of groups that are next to each other in one source."""
    by_source: dict[int, list[tuple[int, int]]] = {}
    for place, group in enumerate(groups):
        for tree in group.members:
            by_source.setdefault(tree.source, []).append((tree.row, place))
    for rows in by_source.values():
        yield from pairwise([place for _, place in sorted(rows)])


def _keys(groups: list[Group], spelled: Callable[[Group], str]) -> list[tuple[object, ...]]:
    """Sort keys of siblings that no source orders: their names and, for those of one name, their texts."""
    count = Counter(group.name for group in groups)
    return [(_natural(group.name), spelled(group) if count[group.name] > 1 else "") for group in groups]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key by which numbers in a name sort by size, and before words."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(name) if part]
