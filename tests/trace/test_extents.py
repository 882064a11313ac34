"""From when to when plain ranges count as nodes, against a slow and obvious version."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tracekit.arrays.intervals import nesting_order
from tracekit.recording.tables import PUSH_POP, START_END
from tracekit.trace.plain.extents import Extents, extents_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interval(NamedTuple):
    """A range or call: ``kind`` is ``popped``, ``lost`` (never ended), ``span`` (start/end) or ``call``."""

    start: int
    end: int
    place: int
    kind: str


def nested(rng: Random, times: list[int], *, ends: bool = True) -> Iterator[Interval]:
    """Ranges that are pushed and popped at the given times, and calls."""
    stack: list[int] = []
    for at in times:
        if stack and rng.random() < 0.5:
            yield Interval(stack.pop(), at, rng.randrange(3), rng.choice(("popped", "popped", "call")))
        else:
            stack.append(at)
    if ends:
        yield from (Interval(at, times[-1] + 1, rng.randrange(3), "lost") for at in stack)


def intervals(seed: int, *, distinct: bool) -> list[Interval]:
    """Intervals of one thread, sorted as a recording's ranges are; at times that are distinct or are not."""
    rng = Random(f"extents {seed}")
    size = rng.choice((4, 8, 20, 60))
    times = rng.sample(range(10 * size), size) if distinct else rng.choices(range(size), k=size)
    chosen = [*nested(rng, sorted(times[: size // 2]))]
    for first, last in zip(times[size // 2 :: 2], times[size // 2 + 1 :: 2], strict=False):
        chosen.append(Interval(min(first, last), max(first, last), rng.randrange(3), rng.choice(("span", "lost"))))
    return sorted(chosen, key=lambda one: (one.start, -one.end))


def actual(given: list[Interval]) -> dict[int, int]:
    """The ends that the ranges have as nodes, by their positions."""
    ranges: Any = SimpleNamespace(
        ranges=pa.table(
            {
                "open": [one.kind == "lost" for one in given],
                "kind": pa.array([START_END if one.kind == "span" else PUSH_POP for one in given], pa.int8()),
            }
        )
    )
    start, end, place = (np.array([one[field] for one in given], dtype=np.int64) for field in range(3))
    axis: Any = SimpleNamespace(range_start=start, range_end=end)
    called = np.array([one.kind == "call" for one in given])
    rows, calls = np.flatnonzero(~called), np.flatnonzero(called)
    extents = extents_of(ranges, axis, rows, place[rows], Extents(calls, start[calls], end[calls]))
    assert np.array_equal(nesting_order(extents.start, extents.end), np.arange(rows.size))
    assert np.array_equal(extents.start, start[extents.row])
    return dict(zip(extents.row.tolist(), extents.end.tolist(), strict=True))


def obvious(given: list[Interval]) -> dict[int, int]:
    """The same, interval by interval."""
    end = {row: one.end for row, one in enumerate(given)}
    loose = [row for row, one in enumerate(given) if one.kind in ("span", "lost")]
    whole = [one for one in given if one.kind in ("popped", "call")]
    for row in loose:
        one = given[row]
        if one.kind == "lost":
            following = [o.start for o in given[row + 1 :] if o.place == one.place and o.kind != "call"]
            end[row] = min([end[row], *following])
        end[row] = min([end[row], *(o.end for o in whole if o.start < one.start < o.end)])
        end[row] = min([end[row], *(o.start for o in whole if one.start < o.start < end[row] < o.end)])
    for later in loose:
        for row in loose:
            if given[row].start < given[later].start < end[row] < end[later]:
                end[row] = given[later].start
    return {row: end[row] for row, one in enumerate(given) if one.kind != "call"}


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_ranges_are_cut_as_the_obvious_version_cuts_them(first: int) -> None:
    for seed in range(first, first + 100):
        given = intervals(seed, distinct=True)
        assert actual(given) == obvious(given), given


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_whatever_happens_at_the_same_time_ranges_nest_or_are_apart(first: int) -> None:
    for seed in range(first, first + 100):
        given = intervals(seed, distinct=False)
        end = actual(given)
        assert all(one.start <= end[row] <= one.end for row, one in enumerate(given) if row in end)
        assert all(end[row] == one.end for row, one in enumerate(given) if one.kind == "popped")
        spans = [(one.start, end.get(row, one.end)) for row, one in enumerate(given)]
        assert not [(a, b) for a in spans for b in spans if a[0] < b[0] < a[1] < b[1]], given
