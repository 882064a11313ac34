"""Properties of the arithmetic of intervals, against versions that are slow and obvious."""

from functools import partial
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.work import Counted, elements_of, lines_of, peak_bytes_of
from tracekit.arrays import intervals as iv
from tracekit.arrays.intervals import measured_axis
from tracekit.arrays.slices import union_within

Ints = np.ndarray
Sorted = tuple[list[int], list[int]]


def ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def in_nesting_order(pairs: list[tuple[int, int]]) -> Sorted:
    ordered = sorted(pairs, key=lambda pair: (pair[0], -pair[1]))
    return [start for start, _ in ordered], [end for _, end in ordered]


@st.composite
def nested_intervals(draw: st.DrawFn) -> Sorted:
    clock, stack, pairs = -3, [], []
    for push, ticks in draw(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=24)):
        clock += ticks
        if push:
            stack.append(clock)
        elif stack:
            pairs.append((stack.pop(), clock))
    return in_nesting_order(pairs + [(start, clock + 1) for start in stack])


SPANS = st.lists(st.tuples(st.integers(-5, 15), st.sampled_from([0, 0, 1, 2, 5, 9])), max_size=12)
INTERVALS = SPANS.map(lambda spans: in_nesting_order([(s, s + length) for s, length in spans])) | nested_intervals()
POINTS = st.lists(st.tuples(st.integers(-7, 20), st.sampled_from([0, 1, 2, 4])), max_size=8)


def slow_parents(start: list[int], end: list[int]) -> list[int]:
    def holds(j: int, i: int) -> bool:
        touches = end[j] > start[i] or start[i] == end[i] == end[j]
        return end[j] > start[j] and end[j] >= end[i] and touches

    return [max((j for j in range(i) if holds(j, i)), default=-1) for i in range(len(start))]


def above(parent: list[int], row: int) -> list[int]:
    return [] if row < 0 else [row, *above(parent, int(parent[row]))]


SMALL = st.integers(-2, 2)


@given(st.lists(st.tuples(SMALL, SMALL, st.booleans(), SMALL), max_size=20))
def test_nesting_order_is_by_start_then_longest_then_ties_and_keeps_equals_in_order(cases) -> None:
    start, end, first, second = (np.array([case[at] for case in cases], dtype=np.int64) for at in range(4))
    keys = [(s, -e, one, two, row) for row, (s, e, one, two) in enumerate(cases)]
    order = iv.nesting_order(start, end, first.astype(bool), second)
    assert [keys[row] for row in order.tolist()] == sorted(keys)
    without_ties = [(*keys[row][:2], row) for row in iv.nesting_order(start, end).tolist()]
    assert without_ties == sorted(without_ties)


@settings(max_examples=200)
@given(INTERVALS)
def test_parent_is_the_latest_interval_before_that_contains_it(case: Sorted) -> None:
    parent, depth = iv.parents(*map(ints, case))
    assert parent.tolist() == slow_parents(*case)
    assert depth.tolist() == [len(above(parent, row)) - 1 for row in range(parent.size)]
    assert iv.depths(parent).tolist() == depth.tolist()


@settings(max_examples=200)
@given(INTERVALS, POINTS)
def test_innermost_is_the_latest_interval_that_contains_the_query(case: Sorted, queries: list[tuple[int, int]]) -> None:
    start, end = case
    first, last = [at for at, _ in queries], [at + length for at, length in queries]
    expected = [
        max((j for j in range(len(start)) if start[j] <= a and end[j] >= b), default=-1)
        for a, b in zip(first, last, strict=True)
    ]
    parent, _ = iv.parents(ints(start), ints(end))
    found = iv.innermost(ints(start), ints(end), parent, ints(first), ints(last))
    assert found.tolist() == expected


@st.composite
def forests(draw: st.DrawFn) -> Ints:
    parent, stack = [], []
    for pops in draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)):
        del stack[max(0, len(stack) - pops) :]
        parent.append(stack[-1] if stack else -1)
        stack.append(len(parent) - 1)
    return ints(parent)


@given(forests())
def test_the_sibling_before_is_the_latest_row_before_with_the_same_parent(parent: Ints) -> None:
    expected = [max(np.flatnonzero(parent[:row] == parent[row]), default=-1) for row in range(parent.size)]
    assert iv.siblings_before(iv.depths(parent)).tolist() == expected


@given(forests())
def test_subtree_ends_after_the_last_descendant(parent: Ints) -> None:
    below = [[row for row in range(parent.size) if n in above(parent, row)] for n in range(parent.size)]
    found = iv.subtree_ends(parent, iv.depths(parent))
    assert found.tolist() == [max(rows) + 1 for rows in below]


OWNED = st.lists(st.tuples(st.integers(0, 99), st.integers(-20, 20), st.integers(0, 6)), max_size=12)
#: Of several nodes each, as fused kernels are; some overlap.
EQUAL = st.lists(
    st.tuples(st.lists(st.integers(0, 99), max_size=4), st.sampled_from((-20, -12, -4, 4, 12)), st.integers(0, 9)),
    max_size=5,
).map(lambda several: [(node, start, length) for nodes, start, length in several for node in nodes])


@settings(max_examples=200)
@given(forests(), OWNED | EQUAL)
def test_union_within_a_node_counts_every_covered_tick_below_it_once(parent, owned) -> None:
    owner = ints([node % parent.size for node, _, _ in owned])
    start, end = ints([s for _, s, _ in owned]), ints([s + length for _, s, length in owned])
    depth = iv.depths(parent)
    found = union_within(owner, (parent, depth, iv.subtree_ends(parent, depth)), start, end)
    for node in range(parent.size):
        mine = [row for row, at in enumerate(owner.tolist()) if node in above(parent, at)]
        assert found[node] == len({tick for row in mine for tick in range(start[row], end[row])})


#: Ids may be anything.
TIMES = st.integers(-50, 50) | st.integers(-(2**61) + 1, 2**61 - 1) | st.sampled_from([-(2**63), 2**63 - 1])


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), TIMES), max_size=6), min_size=1, max_size=3))
def test_one_axis_keeps_the_order_within_groups_and_the_groups_apart(arrays: list[list[tuple[int, int]]]) -> None:
    groups, times = ([ints([pair[k] for pair in one]) for one in arrays] for k in (0, 1))
    found = iv.one_axis(groups, times)
    assert [one.size for one in found] == [one.size for one in times]
    placed = list(zip(chain(*arrays), np.concatenate(found).tolist(), strict=True))
    for (one, at), (other, there) in product(placed, repeat=2):
        assert (one < other) == (at < there)


@given(st.lists(st.tuples(st.integers(-1, 4), TIMES), min_size=1))
def test_a_measured_axis_keeps_all_distances_or_is_none(pairs: list[tuple[int, int]]) -> None:
    group, time = ints([g for g, _ in pairs]), ints([t for _, t in pairs])
    found = measured_axis([group], [time])
    spans = {g: [t for other, t in pairs if other == g] for g in group.tolist()}
    if found is None:
        longest = max(max(times) - min(times) for times in spans.values())
        assert (longest + 2) * (max(spans) - min(spans) + 1) >= 2**62
        return
    for line in spans:
        assert len(set((found[0] - time)[group == line].tolist())) == 1


def of_a_deep_nest(deep: int) -> None:
    start, end = Counted.of(np.arange(deep)), Counted.of(3 * deep - np.arange(deep))
    parent, depth = iv.parents(start, end)
    assert depth.tolist() == list(range(deep))
    assert iv.subtree_ends(parent, depth).tolist() == [deep] * deep
    # Every query starts inside the deepest interval, and ends with one of those around it.
    query = np.full(deep, deep)
    assert iv.innermost(start, end, parent, query, end).tolist() == list(range(deep))
    assert iv.innermost(start, end, parent, query, end + deep).tolist() == [max(row - deep, -1) for row in range(deep)]


def of_the_union_within_a_deep_nest(deep: int) -> None:
    node = np.arange(deep)
    total = union_within(node, (node - 1, node, np.full(deep, deep)), Counted.of(node), Counted.of(node + 2))
    assert total.tolist() == [deep + 1 - row for row in range(deep)]


def test_work_on_a_union_grows_with_the_intervals_and_the_nodes_above_each() -> None:
    """Which are 256 times as many here."""
    few, many = (partial(of_the_union_within_a_deep_nest, deep) for deep in (300, 4_800))
    assert lines_of(many) < 32 * lines_of(few)
    assert 0 < elements_of(many) < 300 * elements_of(few)
    assert peak_bytes_of(many) < 32 * peak_bytes_of(few)


def of_a_deep_nest_that_overlaps_in_part(deep: int) -> None:
    start = Counted.of(np.append(np.arange(deep), 2 * deep))
    end = Counted.of(np.append(3 * deep - np.arange(deep), 5 * deep))
    parent, depth = iv.parents(start, end)
    assert parent.tolist() == [*range(-1, deep - 1), -1]
    assert depth.tolist() == [*range(deep), 0]


@pytest.mark.parametrize("nest", [of_a_deep_nest, of_a_deep_nest_that_overlaps_in_part])
@pytest.mark.parametrize("work", [lines_of, elements_of, peak_bytes_of])
def test_work_on_a_nest_grows_with_its_depth_alone(nest, work) -> None:
    """All intervals at every level, or every pair of them, would be 256 times as much."""
    assert 0 < work(partial(nest, 4_800)) < 32 * work(partial(nest, 300))
