"""What is asked of a report's large tables: declared columns, in Arrow types of our own, whatever the file stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.nsight.stored import StoredTable

#: Ids with few distinct values, stored once each.
ENCODED = pa.dictionary(pa.int32(), pa.int64())
#: Texts with each distinct one stored once.
ENCODED_TEXT = pa.dictionary(pa.int32(), pa.string())
#: Bytes, likewise.
ENCODED_BLOB = pa.dictionary(pa.int32(), pa.binary())

_Values = TypeVar("_Values", pa.Array, pa.ChunkedArray)

_LEAST, _MOST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One bulk read.

    Attributes:
        table: A declared table.
        columns: The columns to read with the Arrow types to store them in; columns that the file lacks are left out.
        rare: Columns that are also left out if all their values are null.
    """

    table: StoredTable
    columns: Mapping[str, pa.DataType]
    rare: tuple[str, ...] = ()

    def without_empty(self, table: pa.Table) -> pa.Table:
        """The table without those rare columns in which all values are null."""
        empty = [name for name in self.rare if name in table.column_names]
        return table.drop_columns([name for name in empty if table.column(name).null_count == len(table)])


def as_type(array: _Values, type_: pa.DataType) -> tuple[_Values, int]:
    """The values in their stored type, and how many were too large for it and became null.

    Raises:
        pa.ArrowInvalid: If they are of another kind.
    """
    if pa.types.is_dictionary(type_):
        narrower = pa.types.is_integer(array.type) and pa.types.is_integer(type_.value_type)
        if array.type != type_.value_type and not narrower:
            raise pa.ArrowInvalid(f"found {array.type}")
        return array.dictionary_encode().cast(type_), 0
    try:
        return array.cast(type_), 0
    except pa.ArrowInvalid:
        if type_ != pa.int32() or array.type != pa.int64():
            raise
        fits = pc.and_(pc.greater_equal(array, _LEAST), pc.less_equal(array, _MOST))
        return pc.if_else(fits, array, None).cast(type_), pc.sum(pc.invert(fits)).as_py()
