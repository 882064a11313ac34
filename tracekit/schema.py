"""Declarations of tables: columns with types, units and docs, and the check that data conform to them.

Knows nothing of traces; the promised tables live in :mod:`tracekit.tables`, the tables that readers fill in
:mod:`tracekit.recording.tables`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

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


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A declared table: its name, what a row is, its columns in order, and the order of its rows."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()

    def schema(self) -> pa.Schema:
        """The Arrow schema, with docs and units as metadata."""
        return pa.schema([column.field() for column in self.columns], metadata={"doc": self.doc})

    def chosen(self, *names: str) -> tuple[Column, ...]:
        """Some of its columns, for another spec that keeps them as they are."""
        columns = {column.name: column for column in self.columns}
        return tuple(columns[name] for name in names)

    def table(self, columns: dict[str, object]) -> pa.Table:
        """Builds the table from an array for each column, and checks it.

        Raises:
            TypeError: If a column is missing, unknown, of another type, or has nulls that are not allowed.
        """
        promised = [column.name for column in self.columns]
        if sorted(promised) != sorted(columns):
            raise TypeError(f"{self.name}: expected columns {promised}, got {sorted(columns)}")
        arrays = [_conforming(self.name, column, columns[column.name]) for column in self.columns]
        return pa.Table.from_arrays(arrays, schema=self.schema())

    def empty(self) -> pa.Table:
        """The table without rows."""
        return self.schema().empty_table()


def _conforming(table: str, column: Column, values: object) -> pa.Array | pa.ChunkedArray:
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, type=column.type)
    if array.type != column.type:
        array = array.cast(column.type)
    if array.null_count and not column.nullable:
        raise TypeError(f"{table}.{column.name}: {array.null_count} nulls in a column that is never null")
    return array
