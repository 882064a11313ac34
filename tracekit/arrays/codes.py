"""Values as numbers: words and nested lists as codes, ids as positions. -1 is none."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracekit.arrays.types import Flags, Ints, Rows


class Labels(NamedTuple):
    """For each row the place of its word among the distinct words, -1 for null."""

    code: Rows
    words: list[str]

    def named(self, codes: Iterable[int] | Ints) -> list[str | None]:
        """The words of some codes, None for -1."""
        words = [*self.words, None]
        return [words[code] for code in np.asarray(codes, np.int64).tolist()]

    def of(self, *words: str) -> Rows:
        """The codes of those words that occur."""
        return np.array([at for at, word in enumerate(self.words) if word in words], np.int64)

    def among(self, *words: str) -> Flags:
        """Which rows have one of some words."""
        wanted = frozenset(words)
        return np.array([*(word in wanted for word in self.words), False])[self.code]

    def containing(self, text: str) -> Rows:
        """The codes of the words that contain a lowercase text, ignoring their case."""
        return np.array([at for at, word in enumerate(self.words) if text in word.lower()], np.int64)


def labels(table: pa.Table, column: str) -> Labels:
    """A column of categories as codes."""
    values = table.column(column).combine_chunks()
    code = np.asarray(values.indices.fill_null(-1), np.int64)
    return Labels(code, values.dictionary.to_pylist())


#: Ids that leave out more numbers than this for each of them are sorted instead of counted through.
_MOST_LEFT_OUT = 2


def positions(wanted: Ints, ids: Ints) -> Rows:
    """The position of each wanted id among distinct ``ids`` in any order, -1 for those that are not there."""
    if not ids.size:
        return np.full(wanted.size, -1, dtype=np.int64)
    wanted, ids = wanted.astype(np.int64, copy=False), ids.astype(np.int64, copy=False)
    low, high = int(ids.min()), int(ids.max())
    if high - low < _MOST_LEFT_OUT * ids.size:
        place_of = np.full(high - low + 1, -1, dtype=np.int64)
        place_of[ids - low] = np.arange(ids.size)
        inside = (wanted >= low) & (wanted <= high)
        return np.where(inside, place_of[np.where(inside, wanted - low, 0)], -1)
    order = np.argsort(ids, kind="stable")
    by_id = ids[order]
    place = np.minimum(np.searchsorted(by_id, wanted), ids.size - 1)
    return np.where(by_id[place] == wanted, order[place], -1)


def lookup(values: NDArray[Any], rows: Rows, missing: int = -1) -> NDArray[Any]:
    """``values[rows]``, with ``missing`` where the row is -1."""
    if values.size < rows.size:
        return np.append(values, values.dtype.type(missing)).take(rows)
    found = values.take(rows)
    np.copyto(found, values.dtype.type(missing), where=rows < 0)
    return found


def codes(values: pa.Array) -> Rows:
    """A number from 0 on for each entry of numbers, strings, lists or maps; equal entries share it, and so do nulls."""
    if values.null_count == len(values):
        return np.zeros(len(values), np.int64)
    if pa.types.is_struct(values.type):
        return joint((np.asarray(values.is_null(), np.int64), *map(codes, values.flatten())))
    if pa.types.is_map(values.type):
        values = _as_bytes(values, joint((codes(values.keys), codes(values.items))))
    elif pa.types.is_list(values.type):
        values = _as_bytes(values, codes(values.values))
    return np.asarray(values.dictionary_encode().indices.fill_null(-1), np.int64) + 1


def _as_bytes(lists: pa.Array, entries: Rows) -> pa.Array:
    """Each list as the bytes of the numbers of its entries."""
    numbers = entries.astype(np.int32)
    offsets = np.asarray(lists.offsets, np.int64) * numbers.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(numbers)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(lists), buffers)
    return pc.if_else(lists.is_valid(), texts, None) if lists.null_count else texts


#: Combinations of more numbers are first made as few as there are rows.
_MOST_CODES = 2**62


def joint(columns: Iterable[Rows]) -> Rows:
    """A number from 0 on for each row of several columns of such numbers; equal rows share it."""
    code, size = np.zeros(1, np.int64), 1
    for column in columns:
        own = int(column.max(initial=0)) + 1
        if size * own > _MOST_CODES:
            code, size = _dense(code), int(code.size)
        code, size = code * own + column, size * own
    return _dense(code)


def _dense(code: Ints) -> Rows:
    return np.asarray(pa.array(code).dictionary_encode().indices, np.int64)
