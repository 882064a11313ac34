"""Columns of Arrow tables as NumPy arrays."""

import numpy as np
import pyarrow as pa

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
    rows = np.array([2, 0, 0])
    assert taken(table, rows).to_pylist() == table.take(pa.array(rows)).to_pylist()
    more = np.array([2, 0, 0, 1])
    assert taken(table, more).to_pylist() == table.take(pa.array(more)).to_pylist()
    assert taken(table, rows).schema == table.schema
