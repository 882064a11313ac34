"""Values as numbers: words and nested lists as codes, ids as positions. -1 is none."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.arrays.types import Ints, Rows


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
    """The position of each wanted id among distinct ``ids`` in any order, -1 for those that are not there.

    Ids that ascend, or that leave few numbers out, are looked up faster.
    """
    if not ids.size:
        return np.full(wanted.size, -1, dtype=np.int64)
    wanted, ids = wanted.astype(np.int64, copy=False), ids.astype(np.int64, copy=False)
    low, high = int(ids.min()), int(ids.max())
    if high - low < _MOST_LEFT_OUT * ids.size:
        place_of = np.full(high - low + 1, -1, dtype=np.int64)
        place_of[ids - low] = np.arange(ids.size)
        inside = (wanted >= low) & (wanted <= high)
        return np.where(inside, place_of[np.where(inside, wanted - low, 0)], -1)
    ascending = bool((ids[1:] > ids[:-1]).all())
    order = None if ascending else np.argsort(ids, kind="stable")
    by_id = ids if order is None else ids[order]
    place = np.minimum(np.searchsorted(by_id, wanted), ids.size - 1)
    position = place if order is None else order[place]
    return np.where(by_id[place] == wanted, position, -1)


def lookup(values: NDArray[Any], rows: Rows, missing: int = -1) -> NDArray[Any]:
    """``values[rows]``, with ``missing`` where the row is -1."""
    if values.size < rows.size:
        return np.append(values, values.dtype.type(missing)).take(rows)
    found = values.take(rows)
    np.copyto(found, values.dtype.type(missing), where=rows < 0)
    return found


#: Lists longer than any real shape are compared one by one.
_LONG = 64


def codes(values: pa.Array) -> Rows:
    """A number from 0 on for each entry of numbers, strings, lists or maps; equal entries share it, and so do nulls."""
    if pa.types.is_list(values.type) or pa.types.is_map(values.type):
        return _of_lists(values)
    if pa.types.is_struct(values.type):
        return joint(codes(part) for part in values.flatten())
    return np.asarray(values.dictionary_encode().indices.fill_null(-1), np.int64) + 1


def joint(columns: Iterable[Rows]) -> Rows:
    """A number from 0 on for each row of several columns of such numbers; equal rows share it."""
    code: Rows | None = None
    for column in columns:
        most = int(column.max(initial=0))
        if code is None or most:
            code = _dense(column if code is None else code * (most + 1) + column)
    assert code is not None
    return code


def _of_lists(values: pa.Array) -> Rows:
    """Numbers lists of one length at a time: by their first entries, then also by their second ones, and so on."""
    offsets = np.asarray(values.offsets, np.int64)
    inner = _inner(values)
    begin, length = offsets[:-1], np.diff(offsets)
    length = np.where(np.asarray(values.is_null()), -1, length)
    if length.size and length.min() == length.max():
        return _of_one_length(inner, begin, max(int(length[0]), 0))
    code = np.zeros(length.size, dtype=np.int64)
    used = 0
    order = np.argsort(length, kind="stable")
    bounds = np.flatnonzero(np.diff(length[order], prepend=-2, append=-2))
    for rows in np.split(order, bounds[1:-1]) if order.size else []:
        of_length = _of_one_length(inner, begin[rows], max(int(length[rows[0]]), 0))
        code[rows] = of_length + used
        used += int(of_length.max()) + 1
    return code


def _of_one_length(inner: Ints, begin: Ints, length: int) -> Rows:
    if not length:
        return np.zeros(begin.size, dtype=np.int64)
    if length <= _LONG:
        return joint(inner[begin + at] for at in range(length))
    texts = (inner[at : at + length].tobytes() for at in begin.tolist())
    known: dict[bytes, int] = {}
    return np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int64, begin.size)


def _inner(values: pa.Array) -> Ints:
    return joint((codes(values.keys), codes(values.items))) if pa.types.is_map(values.type) else codes(values.values)


def _dense(code: Ints) -> Rows:
    return np.asarray(pa.array(code).dictionary_encode().indices, np.int64)
