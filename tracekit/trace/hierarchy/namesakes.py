"""Different modules under one path: which calls are of which, by what their markers and those inside them say.

Two models that were hooked with one prefix (draft and target) leave calls of the same paths. Outermost calls that
contradict each other, themselves or in what they call, are of different modules, with all that they call. Only where
one call holds both sides are the modules below it told apart instead. Knows no names: it numbers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import by_level, subtree_ends
from tracekit.arrays.slices import distinct
from tracekit.trace.hierarchy.contradictions import clusters, parted
from tracekit.trace.hierarchy.facts import same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.hierarchy.facts import Facts

#: More modules than these under one path of one process are none: something in the markers changes all the time.
MOST_MODULES = 16

#: Which one of several modules a path stands for: how many parts of the path are told apart, and its number there.
Numbers = tuple[tuple[int, int], ...]


class Called(NamedTuple):
    """Calls in pre-order.

    Attributes:
        parent: The call around each one, or -1.
        depth: How many are around it.
        process: The process it ran in.
        place: Which of the paths it stands at; that of the call around it where its own is not known.
        placed: Whether its own place is known.
        said: Which path its marker says; only modules of which one path is said are told apart.
        facts: Which of the facts its marker says.
    """

    parent: Rows
    depth: Rows
    process: Ints
    place: Ints
    placed: Flags
    said: Ints
    facts: Ints


class ToldApart(NamedTuple):
    """Of which module each call is.

    Attributes:
        which: For every call a place in ``numbers``.
        numbers: What tells the modules of one path apart; the first is nothing.
        unclear: Calls of a path that stands for several modules, of which they may be any.
    """

    which: Ints
    numbers: list[Numbers]
    unclear: Flags


class _Tokens(NamedTuple):
    """Calls that tell something.

    Attributes:
        call: The call.
        path: Number of its process, its path and what its marker says of that.
        cluster: What it is one of.
    """

    call: Rows
    path: Ints
    cluster: Ints

    def those(self, rows: Flags | Rows) -> _Tokens:
        return _Tokens(*(column[rows] for column in self))


def told_apart(calls: Called, paths: Sequence[str], facts: Sequence[Facts]) -> ToldApart:
    """Tells the modules of each path of each process apart."""
    found = ToldApart(np.zeros(calls.parent.size, dtype=np.int64), [()], np.zeros(calls.parent.size, dtype=bool))
    tokens = _telling(calls, len(paths), facts)
    if not tokens.call.size:
        return found
    level, end = _levels(calls), subtree_ends(calls.parent, calls.depth)
    placed = np.flatnonzero(calls.placed)
    for items in by_level(level[placed]):
        if not tokens.call.size:
            break
        rows = placed[items]
        at = np.searchsorted(rows, tokens.call, side="right") - 1
        _hand_down(found, rows, _split_siblings(calls, paths, found, rows, (tokens, at)), end)
        # What is below these calls is told apart with them, but for what one of them holds in two ways.
        later = ~np.isin(tokens.call, rows) & ~found.unclear[tokens.call]
        tokens = _contested(tokens.those(later), found.which)
    return found


def _telling(calls: Called, paths: int, facts: Sequence[Facts]) -> _Tokens:
    """The calls of paths of which contradictory things are said in one process."""
    rows = _said_differently(calls, paths)
    words = int(calls.said.max(initial=0)) + 1
    names, name = distinct(calls.place[rows] * words + calls.said[rows])
    path = calls.process[rows].astype(np.int64) * names.size + name
    keys, at = distinct(path * len(facts) + calls.facts[rows])
    of_path, said = np.divmod(keys, len(facts))
    cluster = np.full(keys.size, -1, dtype=np.int64)
    bounds = np.flatnonzero(np.diff(of_path, prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        if high - low > 1:
            found = clusters([facts[one] for one in said[low:high].tolist()], same)
            if max(found) > 0:
                cluster[low:high] = found
    tells = cluster[at] >= 0
    return _Tokens(rows[tells], path[tells], cluster[at][tells])


def _said_differently(calls: Called, paths: int) -> Rows:
    """The calls of paths of which more than one thing is said, contradictory or not."""
    rows = np.flatnonzero(calls.placed)
    place, facts = calls.place[rows], calls.facts[rows]
    low, high = np.full(paths, np.iinfo(np.int64).max), np.full(paths, -1)
    np.minimum.at(low, place, facts)
    np.maximum.at(high, place, facts)
    return rows[(low < high)[place]]


def _levels(calls: Called) -> Ints:
    """How many calls of known places are around each call."""
    level = np.zeros(calls.parent.size, dtype=np.int64)
    for rows in by_level(calls.depth)[1:]:
        above = calls.parent[rows]
        level[rows] = level[above] + calls.placed[above]
    return level


def _contested(tokens: _Tokens, which: Ints) -> _Tokens:
    """Those whose path is still said to be different things within one module."""
    if not tokens.call.size:
        return tokens
    keys, group = distinct(tokens.path * (int(which.max()) + 1) + which[tokens.call])
    low, high = np.full(keys.size, np.iinfo(np.int64).max), np.full(keys.size, -1)
    np.minimum.at(low, group, tokens.cluster)
    np.maximum.at(high, group, tokens.cluster)
    return tokens.those((low < high)[group])


def _split_siblings(
    calls: Called, paths: Sequence[str], found: ToldApart, rows: Rows, held: tuple[_Tokens, Rows]
) -> tuple[Ints, Ints]:
    """Numbers calls of one level that have the same module above them.

    Args:
        calls: All calls.
        paths: Their paths.
        found: What is known from the levels above.
        rows: The calls of this level.
        held: What tells, and in which of them each lies.

    Returns:
        For each of ``rows`` its number, -1 where it may have several; and how many parts of its path that numbers.
    """
    tokens, at = held
    family, domains = _families(paths, _siblings(calls, found.which, rows), calls.place[rows])
    items, lying = (np.argsort(its, kind="stable") for its in (family, family[at]))
    number, parts = np.zeros((2, rows.size), dtype=np.int64)
    for one in np.unique(family[at]).tolist():
        here = items[slice(*np.searchsorted(family[items], (one, one + 1)))]
        mine = lying[slice(*np.searchsorted(family[at][lying], (one, one + 1)))]
        numbered = _numbered(np.searchsorted(here, at[mine]), tokens.those(mine), here.size)
        if numbered is not None:
            number[here], parts[here] = numbered, domains[one]
    return number, parts


def _siblings(calls: Called, which: Ints, rows: Rows) -> Ints:
    """A number for each call, alike for those below one module."""
    above = np.append(calls.parent, -1)[rows]
    inside = above >= 0
    places, ways = int(calls.place.max()) + 2, int(which.max()) + 1
    place = calls.process[rows].astype(np.int64) * places + np.where(inside, calls.place[above], -1)
    return distinct((place + 1) * ways + np.where(inside, which[above], 0))[1]


def _families(paths: Sequence[str], group: Ints, place: Ints) -> tuple[Ints, list[int]]:
    """The calls of each group that stand at one path or below it, where a call of the group stands.

    Returns:
        For each call its family, and for each family of how many parts the path is.
    """
    keys, at = distinct(group * len(paths) + place)
    pairs = [(key // len(paths), tuple(paths[key % len(paths)].split("."))) for key in keys.tolist()]
    family = np.zeros(keys.size, dtype=np.int64)
    domains: list[int] = []
    last: tuple[int, tuple[str, ...]] | None = None
    for row in sorted(range(keys.size), key=pairs.__getitem__):
        its, parts = pairs[row]
        if last is None or (its, parts[: len(last[1])]) != last:
            last = its, parts
            domains.append(len(parts))
        family[row] = len(domains) - 1
    return family[at], domains


def _hand_down(found: ToldApart, rows: Rows, numbered: tuple[Ints, Ints], end: Rows) -> None:
    """Gives the numbers of some calls to all that they call."""
    number, parts = numbered
    changed = np.flatnonzero(number)
    step = np.zeros(found.which.size + 1, dtype=np.int64)
    doubt = np.zeros(found.which.size + 1, dtype=np.int64)
    known = {numbers: at for at, numbers in enumerate(found.numbers)}
    for at in changed.tolist():
        row = int(rows[at])
        if number[at] < 0:
            doubt[row] += 1
            doubt[end[row]] -= 1
            continue
        old = int(found.which[row])
        numbers = (*found.numbers[old], (int(parts[at]), int(number[at])))
        new = known.setdefault(numbers, len(known))
        if new == len(found.numbers):
            found.numbers.append(numbers)
        step[row] += new - old
        step[end[row]] += old - new
    found.which[:] += np.cumsum(step[:-1])
    found.unclear[:] |= np.cumsum(doubt[:-1]) > 0


def _numbered(item: Rows, tokens: _Tokens, items: int) -> Ints | None:
    """The number of the module of each item, -1 where it may be several; None if all are of one.

    Args:
        item: In which item each token lies.
        tokens: What lies in the items.
        items: How many items there are.
    """
    paths, path = distinct(tokens.path)
    cluster = _held_together(item, path, tokens.cluster)
    width = int(cluster.max(initial=0)) + 1
    told = _sorted(item * (paths.size * width) + path * width + cluster)
    item, token = np.divmod(told, paths.size * width)
    kinds: dict[bytes, int] = {}
    bounds = np.searchsorted(item, np.arange(items + 1)).tolist()
    kind = [kinds.setdefault(token[low:high].tobytes(), len(kinds)) for low, high in pairwise(bounds)]
    evidence = [dict(divmod(one, width) for one in np.frombuffer(text, dtype=token.dtype).tolist()) for text in kinds]
    numbers = parted(evidence, MOST_MODULES)
    if numbers is None or max(numbers) == 0:
        return None
    return np.array(numbers, dtype=np.int64)[kind]


def _held_together(item: Rows, path: Ints, cluster: Ints) -> Ints:
    """What is said of each path, as one thing if one item holds both."""
    width = int(cluster.max(initial=0)) + 1
    told = _sorted((item * (int(path.max(initial=0)) + 1) + path) * width + cluster)
    where, what = np.divmod(told, width)
    again = np.flatnonzero(where[1:] == where[:-1])
    if not again.size:
        return cluster
    its = where[again] % (int(path.max(initial=0)) + 1)
    pairs = np.unique(np.stack((its * width + what[again], its * width + what[again + 1])), axis=1)
    first = np.arange((int(path.max(initial=0)) + 1) * width)
    for one, other in pairs.T.tolist():
        low, high = sorted((int(first[one]), int(first[other])))
        first[first == high] = low
    return np.asarray(first[path * width + cluster] - path * width)


def _sorted(codes: Ints) -> Ints:
    """The distinct codes in order."""
    codes = np.sort(codes)
    found: Ints = codes[np.diff(codes, prepend=-1) != 0]
    return found
