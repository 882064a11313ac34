"""Which of many things that are said can be said of one: contradictions part them, and what fits both sides is left.

Knows no modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    T = TypeVar("T")

#: More different things than these said of one path are no modules: something in its markers changes all the time.
MOST_DIFFERENT = 16


def clusters(said: Sequence[T], agree: Callable[[T, T], bool]) -> list[int]:
    """A number for each thing that is said, alike for those that agree.

    What agrees with both of two that contradict each other tells nothing, and has -1. Of too many nothing is told.
    """
    if len(said) > MOST_DIFFERENT:
        return [0] * len(said)
    fits = [1 << at for at in range(len(said))]
    for at, one in enumerate(said):
        for later in range(at + 1, len(said)):
            if agree(one, said[later]):
                fits[at] |= 1 << later
                fits[later] |= 1 << at
    whole = (1 << len(said)) - 1
    clear = whole
    for at, mask in enumerate(fits):
        if any(mask >> other & 1 and mask & ~fits[other] for other in range(len(said))):
            clear &= ~(1 << at)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(mask & clear, len(numbers)) if clear >> at & 1 else -1 for at, mask in enumerate(fits)]


def parted(evidence: Sequence[Mapping[int, int]], most: int) -> list[int] | None:
    """A number for each of some things, alike for those that do not contradict each other; -1 for what fits several.

    Args:
        evidence: What each says of places: two that say different things of one place contradict each other.
        most: So many parts at most; None if there are more.
    """
    number = [0] * len(evidence)
    count, rest = 0, list(range(len(evidence)))
    while rest:
        groups, loose = _groups(evidence, rest, most)
        if count + len(groups) > most:
            return None
        told = [_together(evidence, members) for members in groups]
        joined: list[list[int]] = [[] for _ in groups]
        rest = []
        for one in loose:
            fitting = [at for at, known in enumerate(told) if _fit(evidence[one], known)]
            if not fitting:
                rest.append(one)
            elif len(fitting) == 1:
                joined[fitting[0]].append(one)
            else:
                number[one] = -1
        for at, members in enumerate(groups):
            doubtful = _at_odds(evidence, joined[at])
            for one in (*members, *joined[at]):
                number[one] = -1 if one in doubtful else count + at
        count += len(groups)
    return number


def _groups(evidence: Sequence[Mapping[int, int]], rows: list[int], most: int) -> tuple[list[list[int]], list[int]]:
    """Those that agree in all that they say; and those that were not asked, for they say nothing of what told."""
    pending: list[list[int]] = [rows]
    groups: list[list[int]] = []
    loose: list[int] = []
    while pending and len(pending) + len(groups) <= most:
        members = pending.pop()
        place = _telling(evidence, members)
        if place is None:
            groups.append(members)
            continue
        sides: dict[int, list[int]] = {}
        for one in members:
            if place in evidence[one]:
                sides.setdefault(evidence[one][place], []).append(one)
            else:
                loose.append(one)
        pending += sides.values()
    return sorted(groups + pending), sorted(loose)


def _telling(evidence: Sequence[Mapping[int, int]], rows: list[int]) -> int | None:
    """The place of which most say something, of those of which they say different things."""
    said: dict[int, dict[int, int]] = {}
    for one in rows:
        for place, what in evidence[one].items():
            of_place = said.setdefault(place, {})
            of_place[what] = of_place.get(what, 0) + 1
    telling = [(-sum(of.values()), place) for place, of in said.items() if len(of) > 1]
    return min(telling)[1] if telling else None


def _together(evidence: Sequence[Mapping[int, int]], rows: list[int]) -> dict[int, int]:
    return {place: what for one in rows for place, what in evidence[one].items()}


def _fit(one: Mapping[int, int], known: Mapping[int, int]) -> bool:
    return all(known.get(place, what) == what for place, what in one.items())


def _at_odds(evidence: Sequence[Mapping[int, int]], rows: list[int]) -> set[int]:
    """Those that contradict another one of them."""
    said: dict[int, set[int]] = {}
    for one in rows:
        for place, what in evidence[one].items():
            said.setdefault(place, set()).add(what)
    odd = {place for place, of in said.items() if len(of) > 1}
    return {one for one in rows if odd & evidence[one].keys()}
