"""Dictionary-encoded ids as rows of small tables; the strings of a report, each text stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.lookups import positions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arrays.types import Ints


def occurring(column: pa.ChunkedArray) -> Ints:
    """The distinct values of a dictionary-encoded column that occur in it."""
    array = _one(column)
    return np.asarray(array.dictionary, dtype=np.int64)[used_rows(_indices(array), len(array.dictionary))]


def used_rows(rows: Ints, size: int) -> Ints:
    """The distinct rows of a table of ``size`` rows, without -1, in order."""
    used = np.zeros(size + 1, dtype=bool)
    used[rows] = True
    return np.flatnonzero(used[:-1])


def rows_of(column: pa.ChunkedArray, known: Ints, mask: int = -1) -> Ints:
    """For every value of a dictionary-encoded column its row in the sorted array ``known``; -1 for null or unknown."""
    array = _one(column)
    values = np.asarray(array.dictionary, dtype=np.int64) & mask
    if not values.size or not known.size:
        return np.full(len(array), -1, dtype=np.int32)
    row = np.append(positions(values, known), -1).astype(np.int32)
    return row[_indices(array)]


def _one(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """The column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _indices(array: pa.DictionaryArray) -> Ints:
    """Positions in the dictionary; -1 for null."""
    return np.asarray(array.indices.fill_null(-1))


class Names:
    """The strings of a report; only those that are looked up are kept, each once."""

    def __init__(self, strings: pa.Table) -> None:
        self._ids, self._values = sorted_strings(strings)
        self._row: dict[str, int] = {}

    @property
    def used(self) -> list[str]:
        """The texts kept so far; a row never changes."""
        return list(self._row)

    def rows(self, column: pa.ChunkedArray, spelled: Callable[[str], str] = str) -> Ints:
        """Row in ``used`` for every string id; -1 where it is null or the report has no such string.

        Args:
            column: String ids, dictionary-encoded.
            spelled: Changes a text before it is kept.
        """
        positions = rows_of(column, self._ids)
        wanted = used_rows(positions, self._ids.size)
        row = np.full(self._ids.size + 1, -1, dtype=np.int32)
        row[wanted] = [self.row(spelled(text)) for text in texts_at(self._values, wanted)]
        return row[positions]

    def row(self, text: str) -> int:
        """Row in ``used`` of one text."""
        return self._row.setdefault(text, len(self._row))


def sorted_strings(strings: pa.Table) -> tuple[Ints, pa.Array]:
    """The string table by id."""
    if not strings.num_rows:
        return np.empty(0, dtype=np.int64), pa.array([], pa.string())
    ids = np.asarray(strings.column("id").fill_null(0), dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    return ids[order], strings.column("value").combine_chunks().take(pa.array(order))


def texts_at(values: pa.Array, positions: Ints) -> list[str]:
    """Some values as text; bytes that are not UTF-8 are replaced, a missing text is empty."""
    raw = values.take(pa.array(positions)).cast(pa.binary()).to_pylist()
    return [(text or b"").decode("utf-8", "replace") for text in raw]
