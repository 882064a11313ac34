"""Members of the ``args`` of a Chrome trace's events, as parts of JSON texts to be joined row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.text import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    #: Texts of all rows, or one for all of them.
    Part: TypeAlias = str | pa.Array

_DIMENSIONS = "xyz"


def always(table: pa.Table, columns: Iterable[str]) -> Iterator[Part]:
    """Members that every event has, the first ones of its ``args``; null where they are not known."""
    separator = ""
    for column in columns:
        yield f'{separator}"{column}": '
        yield pc.fill_null(json_text(table.column(column)), "null")
        separator = ", "


def where_known(table: pa.Table, columns: Mapping[str, str]) -> Iterator[Part]:
    """Members that only those events have for which they are known; names by column."""
    for column, name in columns.items():
        values = table.column(column)
        if values.null_count < len(values):
            yield _member(name, json_text(values))


def flag(holds: pa.ChunkedArray, name: str, text: str = "true") -> pa.Array:
    """A member that only those events have for which something holds."""
    return pc.if_else(holds, member(name, text), "").combine_chunks()


def sizes(table: pa.Table, name: str) -> Iterator[Part]:
    """The three sizes of a kernel's grid or block, as Kineto writes them."""
    columns = [table.column(f"{name}_{axis}").combine_chunks().cast(pa.string()) for axis in _DIMENSIONS]
    if columns[0].null_count < len(columns[0]):
        inner = pc.binary_join_element_wise(*columns, ", ")
        yield _member(name, pc.binary_join_element_wise("[", inner, "]", ""))


def member(name: str, text: str | None) -> str:
    """A member as it stands behind others; nothing if its text, which is JSON, is not known."""
    return "" if text is None else f', "{name}": {text}'


def _member(name: str, text: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_join_element_wise(f', "{name}": ', text, ""), "")
