"""Columns of Arrow tables as NumPy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers


def test_a_column_keeps_its_width_and_nulls_become_a_number() -> None:
    table = pa.table({"id": pa.array([1, None, 3], pa.int32())})
    assert integers(table, "id").dtype == np.int32
    assert integers(table, "id").tolist() == [1, -1, 3]
    assert integers(table, "id", null=0).tolist() == [1, 0, 3]
