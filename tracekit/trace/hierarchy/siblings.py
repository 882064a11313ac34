"""The order of siblings in the hierarchy: natural to the reader, and the same in whatever order the sources come."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from tracekit.trace.hierarchy.facts import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.trace.hierarchy.facts import Facts

_DIGITS = re.compile(r"(\d+)")


@dataclass(slots=True)
class Tree:
    """A module as one process or report knows it, with those below.

    Attributes:
        name: Last part of its path, without a number that tells it from others.
        source: Which process or report it is of.
        row: Its number there; -1 of a container that is never called.
        facts: What is said of it.
        differs: Whether its own calls contradict each other about it.
        first: When it was first called, or one below it, by a clock that all sources share; None without one.
        below: Those below, in the order of their first calls.
    """

    name: str
    source: int
    row: int
    facts: Facts = NOTHING
    differs: bool = False
    first: tuple[int, int] | None = None
    below: list[Tree] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """Modules of several sources that are one.

    Attributes:
        name: Their name.
        members: The modules.
        unclear: Whether some of them could as well be other modules of that name.
    """

    name: str
    members: list[Tree]
    unclear: bool = False

    @property
    def first(self) -> tuple[int, int]:
        """When it was first called."""
        return min(one.first for one in self.members if one.first is not None)


def in_order(groups: list[Group], spelled: Callable[[Group], str]) -> list[Group]:
    """Siblings by their first calls where one clock tells them all, else as each source has them.

    Args:
        groups: The siblings.
        spelled: Tells those of one name apart.
    """
    timed = all(one.first is not None for group in groups for one in group.members)
    return _by_number(_by_time(groups)) if timed else _as_in_sources(groups, _keys(groups, spelled))


def _by_time(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: group.first)


def _by_number(groups: list[Group]) -> list[Group]:
    """Numbered siblings by their numbers, unless one process called them in another order: stages of a pipeline."""
    numbered = [at for at, group in enumerate(groups) if _is_number(group.name)]
    seen: dict[int, list[tuple[tuple[int, int] | None, int]]] = {}
    for at in numbered:
        for one in groups[at].members:
            seen.setdefault(one.source, []).append((one.first, int(one.name)))
    for its in seen.values():
        numbers = [number for _, number in sorted(its, key=lambda item: item[0] or (0, 0))]
        if numbers != sorted(numbers):
            return groups
    found = list(groups)
    for at, group in zip(numbered, sorted((groups[at] for at in numbered), key=lambda one: int(one.name)), strict=True):
        found[at] = group
    return found


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _as_in_sources(groups: list[Group], keys: list[tuple[object, ...]]) -> list[Group]:
    """Merges the orders of all sources; what no source orders goes by name, numbers by their size."""
    after: list[set[int]] = [set() for _ in groups]
    waits = [0] * len(groups)
    for earlier, later in _neighbours(groups):
        if later not in after[earlier]:
            after[earlier].add(later)
            waits[later] += 1
    by_name = sorted(range(len(groups)), key=keys.__getitem__)
    rank = {at: number for number, at in enumerate(by_name)}
    free = [rank[at] for at in by_name if not waits[at]]
    found: dict[int, Group] = {}
    for first in by_name:
        while free or first not in found:
            # Where nothing is free any more, sources contradict each other: the first by name goes on.
            at = by_name[heapq.heappop(free)] if free else first
            found[at] = groups[at]
            for later in after[at]:
                waits[later] -= 1
            for later in (one for one in after[at] if not waits[one] and one not in found):
                heapq.heappush(free, rank[later])
    return [*found.values()]


def _neighbours(groups: list[Group]) -> Iterable[tuple[int, int]]:
    """What stands beside each other in one source."""
    places: dict[int, list[tuple[int, int]]] = {}
    for at, group in enumerate(groups):
        for one in group.members:
            places.setdefault(one.source, []).append((one.row, at))
    for its in places.values():
        order = [at for _, at in sorted(its)]
        yield from pairwise(order)


def _keys(groups: list[Group], spelled: Callable[[Group], str]) -> list[tuple[object, ...]]:
    """By what siblings are ordered that no source orders; of one name, by what is said of them."""
    often = Counter(group.name for group in groups)
    return [(_natural(group.name), spelled(group) if often[group.name] > 1 else "") for group in groups]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Numbers in a name count as such, and come before words."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(name) if part]
