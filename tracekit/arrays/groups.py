"""Rows by group: numbering groups, and the count, sum, least, greatest or common value of each.

A row names its group by a number from 0 on. Rows of group -1 are in no group and are ignored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Flags, Ints, Rows

#: Up to this many codes beyond the number of rows, an array of flags is faster than sorting.
_SPARE_CODES = 1 << 16


class Grouping(NamedTuple):
    """The group of each row, and the first row of each group."""

    group: Rows
    first: Rows


def distinct(codes: Ints) -> tuple[Ints, Rows]:
    """The distinct codes, numbers from 0 on, in ascending order, and for each entry its place among them."""
    size = int(codes.max(initial=0)) + 1
    if size > codes.size + _SPARE_CODES:
        # Hashing all codes and sorting the distinct ones takes a fraction of the time of sorting all.
        encoded = pa.array(codes).dictionary_encode()
        keys = encoded.dictionary.to_numpy()
        order = np.argsort(keys)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return keys[order], rank[encoded.indices.to_numpy()]
    used = np.zeros(size, dtype=bool)
    used[codes] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[codes]


def grouped(columns: Sequence[Ints]) -> Grouping:
    """Groups of rows that are equal in every column of integers, in ascending order of the columns' values."""
    varying = [_ranks(column) for column in columns if column.size and column.min() < column.max()]
    group = varying[0] if varying else np.zeros(columns[0].size, dtype=np.int64)
    for code in varying[1:]:
        group = distinct(group * (int(code.max()) + 1) + code)[1]
    first = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    first[group[::-1]] = np.arange(group.size)[::-1]
    return Grouping(group, first)


def _ranks(column: Ints) -> Rows:
    """For each value its place among the distinct ones."""
    least, most = int(column.min()), int(column.max())
    if most - least >= 2**62:
        return np.unique(column, return_inverse=True)[1]
    return distinct(column.astype(np.int64) - least)[1]


def counts(group: Rows, groups: int) -> Ints:
    """The number of rows of each group."""
    number: Ints = np.bincount(group + 1, minlength=groups + 1)[1:]
    return number


def sums(group: Rows, values: Ints, groups: int) -> Ints:
    """The sum of the values of each group."""
    total = np.zeros(groups + 1, dtype=np.int64)
    np.add.at(total, group, values.astype(np.int64, copy=False))  # other types are added thirty times slower
    return total[:groups]


def minima(group: Rows, values: Ints, groups: int) -> Ints:
    """The least value of each group; the largest int64 of an empty one."""
    value = np.full(groups + 1, np.iinfo(np.int64).max)
    np.minimum.at(value, group, values.astype(np.int64, copy=False))
    return value[:groups]


def maxima(group: Rows, values: Ints, groups: int) -> Ints:
    """The greatest value of each group; the smallest int64 of an empty one."""
    value = np.full(groups + 1, np.iinfo(np.int64).min)
    np.maximum.at(value, group, values.astype(np.int64, copy=False))
    return value[:groups]


def agreed(group: Rows, values: Ints, groups: int, missing: int = -1) -> Ints:
    """The value that all rows of a group have; ``missing`` where they differ or there are none."""
    low, high = minima(group, values, groups), maxima(group, values, groups)
    return np.where(low == high, high, missing)


def mixed(group: Rows, values: Ints, groups: int) -> Flags:
    """Which groups have rows of different values."""
    differ: Flags = minima(group, values, groups) < maxima(group, values, groups)
    return differ


def sums_by(keys: Sequence[Ints], values: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
    """The distinct combinations of keys in ascending order, and the sums of each value over their rows."""
    group, first = grouped(keys)
    return [key[first] for key in keys], [sums(group, column, first.size) for column in values]
