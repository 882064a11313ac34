"""What is declared of a table in a SQLite file: its name, and the Python type of each column's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, eq=False)
class StoredTable:
    """A declared table; there is one object of each.

    Attributes:
        name: Its name.
        columns: The type of every column that a file may have: ``int``, ``str``, ``float`` or ``bytes``.
    """

    name: str
    columns: Mapping[str, type]


def stored(name: str, integers: str, texts: str = "", floats: str = "", blobs: str = "") -> StoredTable:
    """A table by the names of its columns, blanks between them."""
    of_type = {int: integers, str: texts, float: floats, bytes: blobs}
    return StoredTable(name, {column: type_ for type_, names in of_type.items() for column in names.split()})
