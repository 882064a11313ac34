"""Declarations of tables: columns with types, units and docs, the check that data conform, and typed columns.

A table is a class with a line for each column, ``start_ns = Integers(pa.int64(), "Start.")``: its ``SPEC`` declares
them, and on rows that were read ``kernels.start_ns`` is the column, made on first use and kept. The tables of a dataset
are in ``tables``; what makes them, in :mod:`tracekit.tables`.
"""

from collections import Counter
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa
from typing_extensions import override

from tracekit.arrays.codes import Labels, labels
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Flags, Ints, Rows

#: Bytes of the widest values.
_WIDEST = 8
#: Few distinct strings, stored once each.
CATEGORY = pa.dictionary(pa.int32(), pa.string())
#: The dimensions of one or more tensors: ``[[8, 4096], [8]]``.
SHAPES = pa.list_(pa.list_(pa.int64()))
#: The dtype and device of one or more tensors: ``["bfloat16 cuda:0", "int64 cuda:0"]``.
TYPES = pa.list_(pa.string())
_INT64 = pa.int64()


@dataclass(frozen=True, slots=True)
class Column:
    """A column; its ``doc`` says what null means. Times end in ``_ns``, sizes in ``_bytes``, ids in ``_id``."""

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
    _schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = pa.schema([column.field() for column in self.columns], metadata={"doc": self.doc})
        object.__setattr__(self, "_schema", schema)

    def schema(self) -> pa.Schema:
        """The Arrow schema, with docs and units as metadata."""
        return self._schema

    def table(self, columns: Mapping[str, object]) -> pa.Table:
        """Builds the table from an array for each column, and checks it. None is nulls, which share memory.

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

    def conflict(self, stored: pa.Schema) -> str | None:
        """The first column of a file that is not as declared here. A file may lack columns, and may have more."""
        if stored.equals(self._schema):
            return None
        if twice := next((name for name, number in Counter(stored.names).items() if number > 1), None):
            return f"it has {twice} twice"
        declared = {column.name: column for column in self.columns}
        for there in stored:
            column = declared.get(there.name)
            if column and (there.type != column.type or there.nullable > column.nullable):
                found = Column(there.name, there.type, "", there.nullable)
                return f"{found.name} is {found.type_name}, not {column.type_name}"
        return None

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


T = TypeVar("T")


class TypedColumn(Generic[T]):
    """A column in the class of its table; of rows of that table, the values."""

    def __init__(self, doc: str, type_: pa.DataType, *, nullable: bool = False) -> None:
        self._declared = type_, doc, nullable

    def __set_name__(self, table: type, name: str) -> None:
        self.column = Column(name, *self._declared)

    def __get__(self, rows: "TypedTable", table: type) -> T:
        # From now on the attribute of the same name is found first.
        values = vars(rows)[self.column.name] = self.values(rows.table)
        return values

    def values(self, table: pa.Table) -> T:
        """The values in some rows."""
        raise NotImplementedError


class Integers(TypedColumn[Ints]):
    """Integers as NumPy, as wide as they are stored; nulls, where the column has any, are the number ``null``."""

    def __init__(self, doc: str, type_: pa.DataType = _INT64, *, null: int | None = None) -> None:
        super().__init__(doc, type_, nullable=null is not None)
        self._null = -1 if null is None else null

    @override
    def values(self, table: pa.Table) -> Ints:
        return integers(table, self.column.name, self._null)


class Categories(TypedColumn[Labels]):
    """Few distinct strings, as codes."""

    def __init__(self, doc: str, *, nullable: bool = False) -> None:
        super().__init__(doc, CATEGORY, nullable=nullable)

    @override
    def values(self, table: pa.Table) -> Labels:
        return labels(table, self.column.name)


class ArrowValues(TypedColumn[Any]):
    """What NumPy has no type for, such as lists: an Arrow column."""

    @override
    def values(self, table: pa.Table) -> pa.ChunkedArray:
        return table.column(self.column.name)


class TypedTable:
    """Rows of a declared table, of which some columns were read: its class has a :class:`TypedColumn` for each."""

    SPEC: ClassVar[TableSpec]

    @override
    def __init_subclass__(cls, *, name: str, sorted_by: tuple[str, ...] = ()) -> None:
        columns = tuple(one.column for one in vars(cls).values() if isinstance(one, TypedColumn))
        cls.SPEC = TableSpec(name, " ".join((cls.__doc__ or "").split()), columns, sorted_by)

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def take(self, rows: Rows) -> Self:
        """Some of the rows, or all in another order."""
        return type(self)(self.table.take(pa.array(rows)))

    def filter(self, keep: Flags) -> Self:
        """The rows to keep."""
        return type(self)(self.table.filter(pa.array(keep)))
