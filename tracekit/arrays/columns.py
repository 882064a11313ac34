"""Columns of Arrow tables as NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints


def integers(table: pa.Table, column: str, null: int = -1) -> Ints:
    """An integer column as NumPy, as wide as it is stored, with ``null`` in place of nulls."""
    values = table.column(column)
    if values.null_count:
        values = values.fill_null(pa.scalar(null, values.type))
    return np.asarray(values.to_numpy())
