"""Declarations of tables: columns with types, units and docs, and the check that data conform to them.

Knows nothing of traces; the promised tables live in :mod:`tracekit.tables`, the tables that readers fill in
:mod:`tracekit.recording.tables`.
"""

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

#: Bytes of the widest values.
_WIDEST = 8
#: Few distinct strings, stored once each.
CATEGORY = pa.dictionary(pa.int32(), pa.string())
#: The dimensions of one or more tensors: ``[[8, 4096], [8]]``.
SHAPES = pa.list_(pa.list_(pa.int64()))
#: The dtype and device of one or more tensors: ``["bfloat16 cuda:0", "int64 cuda:0"]``.
TYPES = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """One promised column.

    Attributes:
        name: Its name; times end in ``_ns``, sizes in ``_bytes``, keys in ``_id``.
        type: Its Arrow type.
        doc: What it holds, with the meaning of null.
        nullable: Whether values may be null: unknown or not applicable.
    """

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False

    @property
    def unit(self) -> str | None:
        """The unit at the end of the name: ``ns``, ``bytes`` or None."""
        return next((unit for unit in ("ns", "bytes") if self.name.endswith(f"_{unit}")), None)

    @property
    def type_name(self) -> str:
        """The type in short, with a question mark if the column may be null: ``category``, ``list<int64>?``."""
        name = str(self.type).replace("element: ", "").replace("item: ", "")
        name = name.replace(str(CATEGORY), "category")
        return f"{name}?" if self.nullable else name

    def field(self) -> pa.Field:
        """The Arrow field, with doc and unit as its metadata."""
        metadata = {"doc": self.doc} | ({"unit": self.unit} if self.unit else {})
        return pa.field(self.name, self.type, nullable=self.nullable, metadata=metadata)


#: A column whose values may be null.
Nullable = partial(Column, nullable=True)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A declared table: its name, what a row is, its columns in order, and the order of its rows."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()
    _schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = pa.schema([column.field() for column in self.columns], metadata={"doc": self.doc})
        object.__setattr__(self, "_schema", schema)

    def schema(self) -> pa.Schema:
        """The Arrow schema, with docs and units as metadata."""
        return self._schema

    def chosen(self, *names: str) -> tuple[Column, ...]:
        """Some of its columns, for another spec that keeps them as they are."""
        columns = {column.name: column for column in self.columns}
        return tuple(columns[name] for name in names)

    def table(self, columns: Mapping[str, object]) -> pa.Table:
        """Builds the table from an array for each column, and checks it.

        Args:
            columns: The arrays; None for a column of nothing but nulls. All such columns share their memory.

        Raises:
            TypeError: If a column is missing, unknown, of another type, or has nulls that are not allowed.
        """
        promised = [column.name for column in self.columns]
        if sorted(promised) != sorted(columns):
            raise TypeError(f"{self.name}: expected columns {promised}, got {sorted(columns)}")
        rows = next(len(values) for values in columns.values() if isinstance(values, Sized))
        zeros = pa.py_buffer(bytes(_WIDEST * (rows + 1)))
        arrays = [_conforming(self.name, column, columns[column.name], zeros) for column in self.columns]
        return pa.Table.from_arrays(arrays, schema=self.schema())

    def empty(self) -> pa.Table:
        """The table without rows."""
        return self.schema().empty_table()


def _conforming(table: str, column: Column, values: object, zeros: pa.Buffer) -> pa.Array | pa.ChunkedArray:
    if values is None:
        values = _nulls(column.type, zeros)
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, type=column.type)
    if array.type != column.type:
        array = array.cast(column.type)
    if array.null_count and not column.nullable:
        raise TypeError(f"{table}.{column.name}: {array.null_count} nulls in a column that is never null")
    return array if array.null_count < len(array) else _nulls(column.type, zeros)


def _nulls(type_: pa.DataType, zeros: pa.Buffer) -> pa.Array:
    rows = zeros.size // _WIDEST - 1
    if pa.types.is_dictionary(type_):
        return pa.DictionaryArray.from_arrays(_nulls(type_.index_type, zeros), pa.array([], type_.value_type))
    if pa.types.is_string(type_):
        return pa.Array.from_buffers(type_, rows, [zeros, zeros, zeros], rows)
    if pa.types.is_primitive(type_):
        return pa.Array.from_buffers(type_, rows, [zeros, zeros], rows)
    return pa.nulls(rows, type_)
