"""Tells different modules under one path apart, by the markers of their calls and of the calls inside.

Two models that were hooked with one prefix (draft and target) leave calls of the same paths. Outermost calls that
contradict each other, themselves or in what they call, are of different modules, with all that they call. Only where
one call contains both sides are the modules below it told apart instead. Modules have numbers here, not names.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import distinct, mixed
from tracekit.arrays.intervals import by_level, subtree_ends
from tracekit.trace.hierarchy.contradictions import clusters, parted
from tracekit.trace.hierarchy.facts import same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.hierarchy.facts import Facts

#: More than these under one path of one process are not modules: something in the markers changes all the time.
MOST_MODULES = 16

#: Which of several modules a path stands for: pairs of how many parts the numbered path has, and the number.
Numbers = tuple[tuple[int, int], ...]


class Called(NamedTuple):
    """Calls in pre-order.

    Attributes:
        parent: Row of the call around it, or -1.
        depth: How many calls are around it.
        process: Row of processes.
        place: Row of the path it stands at; that of the call around it where its own is not known.
        placed: Whether its own place is known.
        marked_path: Number of the path in its marker; only modules whose markers agree on it are told apart.
        facts: Row of the facts that its marker states.
    """

    parent: Rows
    depth: Rows
    process: Ints
    place: Ints
    placed: Flags
    marked_path: Ints
    facts: Ints


class Namesakes(NamedTuple):
    """Which of the modules of its path each call is of.

    Attributes:
        which: For every call a position in ``numbers``.
        numbers: What tells the modules of one path apart; the first entry is empty.
        unclear: Which calls may be of any of several modules of their path.
    """

    which: Ints
    numbers: list[Numbers]
    unclear: Flags


class _Tokens(NamedTuple):
    """Calls whose facts prove something.

    Attributes:
        call: Row of the call.
        path: A number for its process, its path and the path in its marker together.
        cluster: Number of the facts, the same for facts that agree.
    """

    call: Rows
    path: Ints
    cluster: Ints

    def those(self, rows: Flags | Rows) -> _Tokens:
        return _Tokens(*(column[rows] for column in self))


def namesakes_of(calls: Called, paths: Sequence[str], facts: Sequence[Facts]) -> Namesakes:
    """Tells the modules of each path of each process apart."""
    apart = Namesakes(np.zeros(calls.parent.size, dtype=np.int64), [()], np.zeros(calls.parent.size, dtype=bool))
    tokens = _tokens(calls, len(paths), facts)
    if not tokens.call.size:
        return apart
    level, end = _levels(calls), subtree_ends(calls.parent, calls.depth)
    placed = np.flatnonzero(calls.placed)
    for items in by_level(level[placed]):
        if not tokens.call.size:
            break
        rows = placed[items]
        item = np.searchsorted(rows, tokens.call, side="right") - 1
        _hand_down(apart, rows, _split_siblings(calls, paths, apart, rows, (tokens, item)), end)
        # Modules below these calls are told apart with them, unless one call contains both sides of a contradiction.
        later = ~np.isin(tokens.call, rows) & ~apart.unclear[tokens.call]
        tokens = _contested(tokens.those(later), apart.which)
    return apart


def _tokens(calls: Called, paths: int, facts: Sequence[Facts]) -> _Tokens:
    """The calls of paths whose facts contradict each other in one process."""
    rows = _with_different_facts(calls, paths)
    marked_paths = int(calls.marked_path.max(initial=0)) + 1
    names, name = distinct(calls.place[rows] * marked_paths + calls.marked_path[rows])
    path = calls.process[rows].astype(np.int64) * names.size + name
    keys, key = distinct(path * len(facts) + calls.facts[rows])
    of_path, fact = np.divmod(keys, len(facts))
    cluster = np.full(keys.size, -1, dtype=np.int64)
    bounds = np.flatnonzero(np.diff(of_path, prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        if high - low > 1:
            numbers = clusters([facts[row] for row in fact[low:high].tolist()], same)
            if max(numbers) > 0:
                cluster[low:high] = numbers
    contradicted = cluster[key] >= 0
    return _Tokens(rows[contradicted], path[contradicted], cluster[key][contradicted])


def _with_different_facts(calls: Called, paths: int) -> Rows:
    """The calls of paths with more than one set of facts, contradictory or not."""
    rows = np.flatnonzero(calls.placed)
    place, facts = calls.place[rows], calls.facts[rows]
    return rows[mixed(place, facts, paths)[place]]


def _levels(calls: Called) -> Ints:
    """How many calls of known places are around each call."""
    level = np.zeros(calls.parent.size, dtype=np.int64)
    for rows in by_level(calls.depth)[1:]:
        above = calls.parent[rows]
        level[rows] = level[above] + calls.placed[above]
    return level


def _contested(tokens: _Tokens, which: Ints) -> _Tokens:
    """The tokens of paths whose facts still contradict each other within one module."""
    if not tokens.call.size:
        return tokens
    keys, group = distinct(tokens.path * (int(which.max()) + 1) + which[tokens.call])
    return tokens.those(mixed(group, tokens.cluster, keys.size)[group])


def _split_siblings(
    calls: Called, paths: Sequence[str], apart: Namesakes, rows: Rows, inside: tuple[_Tokens, Rows]
) -> tuple[Ints, Ints]:
    """Numbers calls of one level that have the same module above them.

    Args:
        calls: All calls.
        paths: Their paths.
        apart: What is known from the levels above.
        rows: The calls of this level.
        inside: The tokens; and for each the position in ``rows`` of the call that it lies in.

    Returns:
        For each of ``rows`` its number, -1 where it may have several; and how many parts of its path have that number.
    """
    tokens, item = inside
    family, lengths = _families(paths, _siblings(calls, apart.which, rows), calls.place[rows])
    by_family, tokens_by_family = (np.argsort(column, kind="stable") for column in (family, family[item]))
    number, parts = np.zeros((2, rows.size), dtype=np.int64)
    for row in np.unique(family[item]).tolist():
        members = by_family[slice(*np.searchsorted(family[by_family], (row, row + 1)))]
        own = tokens_by_family[slice(*np.searchsorted(family[item][tokens_by_family], (row, row + 1)))]
        numbers = _numbered(np.searchsorted(members, item[own]), tokens.those(own), members.size)
        if numbers is not None:
            number[members], parts[members] = numbers, lengths[row]
    return number, parts


def _siblings(calls: Called, which: Ints, rows: Rows) -> Ints:
    """A number for each call, the same for those below one module."""
    above = np.append(calls.parent, -1)[rows]
    inside = above >= 0
    places, ways = int(calls.place.max()) + 2, int(which.max()) + 1
    place = calls.process[rows].astype(np.int64) * places + np.where(inside, calls.place[above], -1)
    return distinct((place + 1) * ways + np.where(inside, which[above], 0))[1]


def _families(paths: Sequence[str], group: Ints, place: Ints) -> tuple[Ints, list[int]]:
    """Splits the calls of each group into families: a path of the group with all paths of the group below it.

    Returns:
        For each call the row of its family, and for each family how many parts its path has.
    """
    keys, key = distinct(group * len(paths) + place)
    pairs = [(code // len(paths), tuple(paths[code % len(paths)].split("."))) for code in keys.tolist()]
    family = np.zeros(keys.size, dtype=np.int64)
    lengths: list[int] = []
    last: tuple[int, tuple[str, ...]] | None = None
    for row in sorted(range(keys.size), key=pairs.__getitem__):
        number, parts = pairs[row]
        if last is None or (number, parts[: len(last[1])]) != last:
            last = number, parts
            lengths.append(len(parts))
        family[row] = len(lengths) - 1
    return family[key], lengths


def _hand_down(apart: Namesakes, rows: Rows, numbered: tuple[Ints, Ints], end: Rows) -> None:
    """Gives the numbers of some calls to everything that they call.

    Args:
        apart: What is known so far; changed in place.
        rows: The calls.
        numbered: The number of each, and how many parts of its path have that number.
        end: For every call the row after its last descendant.
    """
    number, parts = numbered
    step = np.zeros(apart.which.size + 1, dtype=np.int64)
    doubt = np.zeros(apart.which.size + 1, dtype=np.int64)
    known = {numbers: row for row, numbers in enumerate(apart.numbers)}
    for item in np.flatnonzero(number).tolist():
        row = int(rows[item])
        if number[item] < 0:
            doubt[row] += 1
            doubt[end[row]] -= 1
            continue
        old = int(apart.which[row])
        numbers = (*apart.numbers[old], (int(parts[item]), int(number[item])))
        new = known.setdefault(numbers, len(known))
        if new == len(apart.numbers):
            apart.numbers.append(numbers)
        step[row] += new - old
        step[end[row]] += old - new
    apart.which[:] += np.cumsum(step[:-1])
    apart.unclear[:] |= np.cumsum(doubt[:-1]) > 0


def _numbered(item: Rows, tokens: _Tokens, items: int) -> Ints | None:
    """The number of the module of each item, -1 where it may have several; None if all have one.

    Args:
        item: The item that each token lies in.
        tokens: The tokens in the items.
        items: How many items there are.
    """
    paths, path = distinct(tokens.path)
    cluster = _held_together(item, path, tokens.cluster)
    width = int(cluster.max(initial=0)) + 1
    codes = _sorted(item * (paths.size * width) + path * width + cluster)
    item, token = np.divmod(codes, paths.size * width)
    kinds: dict[bytes, int] = {}
    bounds = np.searchsorted(item, np.arange(items + 1)).tolist()
    kind = [kinds.setdefault(token[low:high].tobytes(), len(kinds)) for low, high in pairwise(bounds)]
    statements = [dict(divmod(code, width) for code in np.frombuffer(text, token.dtype).tolist()) for text in kinds]
    numbers = parted(statements, MOST_MODULES)
    if numbers is None or max(numbers) == 0:
        return None
    return np.array(numbers, dtype=np.int64)[kind]


def _held_together(item: Rows, path: Ints, cluster: Ints) -> Ints:
    """Clusters of each token, merged where one item contains both."""
    width, paths = int(cluster.max(initial=0)) + 1, int(path.max(initial=0)) + 1
    codes = _sorted((item * paths + path) * width + cluster)
    item_path, held = np.divmod(codes, width)
    again = np.flatnonzero(item_path[1:] == item_path[:-1])
    if not again.size:
        return cluster
    base = item_path[again] % paths * width
    pairs = np.unique(np.stack((base + held[again], base + held[again + 1])), axis=1)
    first = np.arange(paths * width)
    for left, right in pairs.T.tolist():
        low, high = sorted((int(first[left]), int(first[right])))
        first[first == high] = low
    return np.asarray(first[path * width + cluster] - path * width)


def _sorted(codes: Ints) -> Ints:
    """The distinct codes in order."""
    codes = np.sort(codes)
    return np.asarray(codes[np.diff(codes, prepend=-1) != 0])
