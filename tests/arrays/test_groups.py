"""What groups of rows have in number, in sum, at most and in common, against plain Python."""

import numpy as np
from hypothesis import given, strategies as st

from tracekit.arrays.groups import agreed, counts, distinct, grouped, maxima, minima, mixed, sums, sums_by


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(rows, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-(2**58), 2**58) | st.integers(0, 2)), max_size=30))
def test_every_group_has_its_count_sum_extremes_and_what_all_its_rows_agree_on(rows: list[tuple[int, int]]) -> None:
    group, value = columns(rows)
    bounds = np.iinfo(np.int64)
    for one in range(6):
        values = [value for group, value in rows if group == one]
        assert (counts(group, 6)[one], sums(group, value, 6)[one]) == (len(values), sum(values))
        extremes = minima(group, value, 6)[one], maxima(group, value, 6)[one]
        assert extremes == (min(values, default=bounds.max), max(values, default=bounds.min))
        assert agreed(group, value, 6, missing=-7)[one] == (values[0] if len(set(values)) == 1 else -7)
        assert mixed(group, value, 6)[one] == (len(set(values)) > 1)


@given(st.lists(st.integers(0, 2**40), max_size=20))
def test_distinct_codes_come_in_order_with_the_place_of_each_entry(codes: list[int]) -> None:
    keys, place = distinct(np.array(codes, np.int64))
    assert keys.tolist() == sorted(set(codes))
    assert keys[place].tolist() == codes


PAIRS = st.lists(st.tuples(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1)), max_size=20)


@given(PAIRS)
def test_rows_are_one_group_if_all_their_columns_are_equal(rows: list[tuple[int, int]]) -> None:
    found = grouped(columns(rows))
    ordered = sorted(set(rows))
    assert found.group.tolist() == [ordered.index(row) for row in rows]
    assert found.first.tolist() == [rows.index(row) for row in ordered]


@given(PAIRS)
def test_values_are_added_up_by_several_keys_however_far_these_spread(rows: list[tuple[int, int]]) -> None:
    ones = np.ones(len(rows), np.int64)
    keys, (count,) = sums_by(columns(rows), (ones,))
    assert list(zip(*(key.tolist() for key in keys), strict=True)) == sorted(set(rows))
    assert count.tolist() == [rows.count(row) for row in sorted(set(rows))]
