"""Columns of Arrow tables as NumPy arrays, and back."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.types import Columns, Flags, Ints, Rows


def integers(table: pa.Table, column: str, null: int = -1) -> Ints:
    """An integer column as NumPy, as wide as it is stored, with ``null`` in place of nulls."""
    values = table.column(column)
    if values.null_count:
        values = values.fill_null(pa.scalar(null, values.type))
    return np.asarray(values.to_numpy())


def numbers(table: pa.Table, column: str) -> Ints:
    """As :func:`integers`; a column of equal values, or only of nulls, takes no memory."""
    values = table.column(column)
    least, most = pc.min_max(values).values()
    if values.null_count == len(values) or (least == most and not values.null_count):
        one = least.as_py() if least.is_valid else -1
        return np.broadcast_to(np.array(one, values.type.to_pandas_dtype()), len(values))
    return integers(table, column)


def nullable(values: Ints, type_: pa.DataType) -> pa.Array:
    """Integers as an Arrow array in which -1 is null."""
    if not values.size or int(values.max()) < 0:
        return pa.nulls(values.size, type_)
    return pa.array(values, mask=values < 0).cast(type_)


def in_order(table: pa.Table, order: Rows) -> pa.Table:
    """Some rows of a table in an order; most tables are already what is asked for."""
    same = order.size == table.num_rows and bool((order[1:] > order[:-1]).all())
    return table if same else taken(table, order)


def taken(table: pa.Table, rows: Rows) -> pa.Table:
    """Some rows of a table. Columns of equal values or only of nulls, of which there are many, are only cut."""
    at, fits = pa.array(rows), rows.size <= table.num_rows
    columns = [
        column.slice(0, rows.size) if fits and _is_uniform(column) else column.take(at) for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)


def _is_uniform(column: pa.ChunkedArray) -> bool:
    if column.null_count or column.num_chunks != 1:
        return bool(column.null_count == len(column))
    values = column.chunk(0)
    numbers = values.indices if pa.types.is_dictionary(values.type) else values
    if not pa.types.is_integer(numbers.type):
        return False
    least, most = pc.min_max(numbers).values()
    uniform: bool = least.equals(most)
    return uniform


def selected(columns: Columns, rows: Rows | Flags | slice) -> Columns:
    """Some rows of all columns."""
    return {name: values[rows] for name, values in columns.items()}


def together(parts: Sequence[Columns]) -> Columns:
    """The rows of several tables of the same columns."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def with_nulls(columns: Columns, names: Iterable[str]) -> Columns:
    """Columns with None in place of -1 in some of them."""
    objects = {name: columns[name].astype(object) for name in names}
    for name, values in objects.items():
        values[columns[name] < 0] = None
    return columns | objects
