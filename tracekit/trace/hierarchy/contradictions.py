"""Partitions statements so that those of one part do not contradict each other. Knows no modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    T = TypeVar("T")

    #: By place, one of several things that can be said of it. Two statements that say different things of one place
    #: contradict each other.
    Statement = Mapping[int, int]

#: More facts about one path than these are not those of different modules: something in its markers keeps changing.
MOST_DIFFERENT = 16


def clusters(facts: Sequence[T], agree: Callable[[T, T], bool]) -> list[int]:
    """A number for each fact, the same for facts that agree.

    A fact that agrees with two that contradict each other proves nothing, and gets -1. Too many facts all get 0.
    """
    if len(facts) > MOST_DIFFERENT:
        return [0] * len(facts)
    fits = _agreeing(facts, agree)
    clear = (1 << len(facts)) - 1
    for row, mask in enumerate(fits):
        if any(mask >> other & 1 and mask & ~fits[other] for other in range(len(facts))):
            clear &= ~(1 << row)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(mask & clear, len(numbers)) if clear >> row & 1 else -1 for row, mask in enumerate(fits)]


def _agreeing(facts: Sequence[T], agree: Callable[[T, T], bool]) -> list[int]:
    """For each fact a bit mask of the facts that agree with it, itself included."""
    fits = [1 << row for row in range(len(facts))]
    for row, fact in enumerate(facts):
        for later in range(row + 1, len(facts)):
            if agree(fact, facts[later]):
                fits[row] |= 1 << later
                fits[later] |= 1 << row
    return fits


def parted(statements: Sequence[Statement], most: int) -> list[int] | None:
    """A number for each statement, the same for those that do not contradict each other; -1 for those that fit several.

    Args:
        statements: The statements.
        most: The largest number of parts.

    Returns:
        The numbers; None if there are more parts.
    """
    number = [0] * len(statements)
    count, rest = 0, list(range(len(statements)))
    while rest:
        parts, loose = _parts(statements, rest, most)
        if count + len(parts) > most:
            return None
        joined, doubtful, rest = _join(statements, parts, loose)
        for row in doubtful:
            number[row] = -1
        for part, members in enumerate(parts):
            contradicting = _contradicting(statements, joined[part])
            for row in (*members, *joined[part]):
                number[row] = -1 if row in contradicting else count + part
        count += len(parts)
    return number


def _parts(statements: Sequence[Statement], rows: list[int], most: int) -> tuple[list[list[int]], list[int]]:
    """Splits statements, place by place, until those of each part agree.

    Returns:
        The parts; and statements that say nothing of a place by which others were split.
    """
    pending: list[list[int]] = [rows]
    parts: list[list[int]] = []
    loose: list[int] = []
    while pending and len(pending) + len(parts) <= most:
        members = pending.pop()
        place = _contested_place(statements, members)
        if place is None:
            parts.append(members)
            continue
        sides: dict[int, list[int]] = {}
        for row in members:
            if place in statements[row]:
                sides.setdefault(statements[row][place], []).append(row)
            else:
                loose.append(row)
        pending += sides.values()
    return sorted(parts + pending), sorted(loose)


def _join(
    statements: Sequence[Statement], parts: list[list[int]], loose: list[int]
) -> tuple[list[list[int]], list[int], list[int]]:
    """Adds loose statements to the only part that they fit.

    Returns:
        What is added to each part; statements that fit several; and those that fit none.
    """
    union = [_union(statements, members) for members in parts]
    joined: list[list[int]] = [[] for _ in parts]
    several, none = [], []
    for row in loose:
        fitting = [part for part, known in enumerate(union) if _fit(statements[row], known)]
        if not fitting:
            none.append(row)
        elif len(fitting) == 1:
            joined[fitting[0]].append(row)
        else:
            several.append(row)
    return joined, several, none


def _contested_place(statements: Sequence[Statement], rows: list[int]) -> int | None:
    """The place that most statements mention, among those of which they say different things; None if there is none."""
    counts: dict[int, dict[int, int]] = {}
    for row in rows:
        for place, thing in statements[row].items():
            of_place = counts.setdefault(place, {})
            of_place[thing] = of_place.get(thing, 0) + 1
    contested = [(-sum(of_place.values()), place) for place, of_place in counts.items() if len(of_place) > 1]
    return min(contested)[1] if contested else None


def _union(statements: Sequence[Statement], rows: list[int]) -> dict[int, int]:
    return {place: thing for row in rows for place, thing in statements[row].items()}


def _fit(statement: Statement, known: Statement) -> bool:
    return all(known.get(place, thing) == thing for place, thing in statement.items())


def _contradicting(statements: Sequence[Statement], rows: list[int]) -> set[int]:
    """The rows whose statements contradict another of them."""
    things: dict[int, set[int]] = {}
    for row in rows:
        for place, thing in statements[row].items():
            things.setdefault(place, set()).add(thing)
    contested = {place for place, of_place in things.items() if len(of_place) > 1}
    return {row for row in rows if contested & statements[row].keys()}
