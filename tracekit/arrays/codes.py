"""Nested lists as numbers: equal lists get equal numbers, at any depth, without a loop over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.arrays.types import Ints, Rows


#: Lists longer than any real shape are compared one by one.
_LONG = 64


def codes(values: pa.Array) -> Rows:
    """A number from 0 on for each entry of an array of numbers, strings, lists or maps; equal entries share it.

    Args:
        values: The array. Null is a value of its own.
    """
    if pa.types.is_list(values.type) or pa.types.is_map(values.type):
        return _of_lists(values)
    if pa.types.is_struct(values.type):
        return joint(codes(part) for part in values.flatten())
    return np.asarray(values.dictionary_encode().indices.fill_null(-1), np.int64) + 1


def joint(columns: Iterable[Rows]) -> Rows:
    """A number from 0 on for each row of several columns of such numbers; equal rows share it."""
    code: Rows | None = None
    for column in columns:
        code = column if code is None else _dense(code * (int(column.max(initial=0)) + 1) + column)
    assert code is not None
    return code


def _of_lists(values: pa.Array) -> Rows:
    """Numbers lists of one length at a time: by their first entries, then also by their second ones, and so on."""
    offsets = np.asarray(values.offsets, np.int64)
    inner = _inner(values)
    begin, length = offsets[:-1], np.diff(offsets)
    length = np.where(np.asarray(values.is_null()), -1, length)
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
    if length <= _LONG:
        nothing = np.zeros(begin.size, dtype=np.int64)
        return joint((nothing, *(inner[begin + at] for at in range(length))))
    texts = (inner[at : at + length].tobytes() for at in begin.tolist())
    known: dict[bytes, int] = {}
    return np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int64, begin.size)


def _inner(values: pa.Array) -> Ints:
    """Numbers of the entries of all lists, addressed by the offsets of the lists."""
    if pa.types.is_map(values.type):
        return joint((codes(values.keys), codes(values.items)))
    return codes(values.values)


def _dense(code: Ints) -> Rows:
    """The same groups in small numbers, so that the product of two never overflows."""
    return np.asarray(pa.array(code).dictionary_encode().indices, np.int64)
