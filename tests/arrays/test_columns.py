"""Columns of Arrow tables as NumPy arrays; ids are found wherever they stand, and values are taken by position."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from tracekit.arrays.codes import codes, joint, lookup, positions
from tracekit.arrays.columns import integers, numbers, taken


def test_a_column_keeps_its_width_and_nulls_become_a_number() -> None:
    table = pa.table({"id": pa.array([1, None, 3], pa.int32())})
    assert integers(table, "id").dtype == np.int32
    assert integers(table, "id").tolist() == [1, -1, 3]
    assert integers(table, "id", null=0).tolist() == [1, 0, 3]


def test_a_column_of_one_value_is_stored_once_and_nulls_among_it_count() -> None:
    table = pa.table({"one": [7, 7, 7], "none": pa.nulls(3, pa.int32()), "some": [7, None, 7]})
    assert numbers(table, "one").tolist() == [7, 7, 7]
    assert numbers(table, "none").tolist() == [-1, -1, -1]
    assert numbers(table, "some").tolist() == [7, -1, 7]
    assert numbers(table, "one").strides == numbers(table, "none").strides == (0,)
    assert numbers(table.slice(0, 0), "one").tolist() == []


def test_rows_are_taken_in_any_order_whatever_their_columns_hold() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table({"id": [1, 2, 3], "none": pa.nulls(3, pa.int32()), "some": [None, 5, None], "word": words})
    table = table.append_column("one", [[7, 7, 7]]).append_column("flag", [[True, True, False]])
    table = table.append_column("like", pa.array(["x"] * 3).dictionary_encode()).append_column("f", [[0.5, 0.5, 1.5]])
    for rows in (np.array([2, 0, 0]), np.array([2, 0, 0, 1])):
        assert taken(table, rows).to_pylist() == table.take(pa.array(rows)).to_pylist()
        assert taken(table, rows).schema == table.schema


IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 20), unique=True, max_size=12)
CLOSE = st.integers(-(2**62), 2**62).flatmap(
    lambda first: st.lists(st.integers(first, first + 20), unique=True, max_size=12)
)


@given(IDS | CLOSE, IDS | CLOSE)
def test_an_id_is_found_at_its_position_or_not_at_all(ids: list[int], others: list[int]) -> None:
    wanted = [*others, *ids[::-1]]
    for known in (ids, sorted(ids)):
        expected = [known.index(one) if one in known else -1 for one in wanted]
        assert positions(np.array(wanted, np.int64), np.array(known, np.int64)).tolist() == expected


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
    both = list(zip(shapes, others, strict=True))
    for column, values in zip([*columns, joint(columns)], [shapes, others, both], strict=True):
        first = [column.tolist().index(one) for one in column.tolist()]
        assert first == [values.index(one) for one in values]
