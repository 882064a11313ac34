"""Nested lists as numbers: equal ones get equal numbers, whatever their depth, without a loop over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.arrays.types import Ints, Rows


#: Lists longer than any real shape are told apart one by one.
_LONG = 64


def codes(values: pa.Array) -> Rows:
    """A number for each entry of an array of numbers, strings, lists or maps; equal entries have equal numbers.

    Args:
        values: The array. Null counts as a value of its own.
    """
    if pa.types.is_list(values.type) or pa.types.is_map(values.type):
        return _of_lists(values)
    if pa.types.is_struct(values.type):
        return joint(codes(part) for part in values.flatten())
    return np.asarray(values.dictionary_encode().indices.fill_null(-1), np.int64) + 1


def joint(columns: Iterable[Rows]) -> Rows:
    """A number for each row of several columns of numbers from 0 on."""
    found: Rows | None = None
    for column in columns:
        found = column if found is None else _dense(found * (int(column.max(initial=0)) + 1) + column)
    assert found is not None
    return found


def _of_lists(values: pa.Array) -> Rows:
    """Lists of one length at a time: their first entries, then those with the second ones, and so on."""
    offsets = np.asarray(values.offsets, np.int64)
    inner = _inner(values)
    begin, length = offsets[:-1], np.diff(offsets)
    length = np.where(np.asarray(values.is_null()), -1, length)
    found = np.zeros(length.size, dtype=np.int64)
    used = 0
    order = np.argsort(length, kind="stable")
    bounds = np.flatnonzero(np.diff(length[order], prepend=-2, append=-2))
    for rows in np.split(order, bounds[1:-1]) if order.size else []:
        one = _of_one_length(inner, begin[rows], max(int(length[rows[0]]), 0))
        found[rows] = one + used
        used += int(one.max()) + 1
    return found


def _of_one_length(inner: Ints, begin: Ints, length: int) -> Rows:
    if length <= _LONG:
        nothing = np.zeros(begin.size, dtype=np.int64)
        return joint((nothing, *(inner[begin + at] for at in range(length))))
    texts = (inner[at : at + length].tobytes() for at in begin.tolist())
    known: dict[bytes, int] = {}
    return np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int64, begin.size)


def _inner(values: pa.Array) -> Ints:
    """Numbers of what lists hold, addressed by their offsets."""
    if pa.types.is_map(values.type):
        return joint((codes(values.keys), codes(values.items)))
    return codes(values.values)


def _dense(code: Ints) -> Rows:
    """The same distinctions in small numbers, so that products of two never overflow."""
    return np.asarray(pa.array(code).dictionary_encode().indices, np.int64)
