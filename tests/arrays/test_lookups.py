"""Ids are found wherever they stand, and values are taken by position."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from tracekit.arrays.codes import codes, joint, lookup, positions

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 20), unique=True, max_size=12)
CLOSE = st.integers(-(2**62), 2**62).flatmap(
    lambda first: st.lists(st.integers(first, first + 20), unique=True, max_size=12)
)


@given(IDS | CLOSE, IDS | CLOSE)
def test_an_id_is_found_at_its_position_or_not_at_all(ids: list[int], others: list[int]) -> None:
    wanted = [*others, *ids[::-1]]
    expected = [ids.index(one) if one in ids else -1 for one in wanted]
    assert positions(np.array(wanted, np.int64), np.array(ids, np.int64)).tolist() == expected
    in_order = sorted(ids)
    expected = [in_order.index(one) if one in ids else -1 for one in wanted]
    assert positions(np.array(wanted, np.int64), np.array(in_order, np.int64)).tolist() == expected


def test_a_row_of_minus_one_is_missing() -> None:
    assert lookup(np.array([5, 6]), np.array([1, -1, 0]), missing=-9).tolist() == [6, -9, 5]
    assert lookup(np.empty(0, np.int64), np.array([-1])).tolist() == [-1]
    assert lookup(np.array([5, 6, 7]), np.array([2, -1]), missing=-9).tolist() == [7, -9]
    assert lookup(np.array([True, True]), np.array([-1]), missing=False).tolist() == [False]


SHAPES = st.lists(st.none() | st.lists(st.none() | st.lists(st.integers(0, 2), max_size=2), max_size=2), max_size=8)


@given(SHAPES, SHAPES)
def test_lists_share_a_number_exactly_where_they_are_equal(shapes: list[Any], others: list[Any]) -> None:
    shapes, others = shapes[: len(others)], others[: len(shapes)]
    columns = [codes(pa.array(column, pa.list_(pa.list_(pa.int64())))) for column in (shapes, others)]
    for column, values in [
        *zip(columns, (shapes, others), strict=True),
        (joint(columns), [*zip(shapes, others, strict=True)]),
    ]:
        first = [column.tolist().index(one) for one in column.tolist()]
        assert first == [values.index(one) for one in values]
