"""The times of what is compared, a row for each thing and step: 20 bytes each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.aggregates.each_report import Words
from tracekit.arrays.groups import counts, distinct, sums_by
from tracekit.arrays.types import Ints, Rows

#: The columns that name a thing to compare.
KEYS = ["what", "path", "shapes"]
#: Their description of one; its shapes are empty where they are not distinguished.
Key: TypeAlias = tuple[str, str, str]

#: Types of the columns of :class:`KeyRows`.
_STORED = (np.int32, np.int32, np.int64, np.int32)
#: How many rows of both runs are judged at a time.
_MOST_ROWS = 1 << 17


class KeyTimes(NamedTuple):
    """The times of things, a row per thing and step in which it had work; of modules, those of their subtrees.

    ``key`` and ``alike`` are places in ``keys``, some of which may have no rows, and in ``alikes``: texts that are
    equal for steps of like kind and size. Both are sorted, and those of all runs that are compared.
    """

    keys: Sequence[Key]
    alikes: Sequence[str]
    key: Rows
    alike: Rows
    ns: Ints
    kernels: Ints

    def present_keys(self) -> set[Key]:
        """The things that have rows."""
        return {self.keys[at] for at in np.unique(self.key).tolist()}

    def of(self, wanted: Callable[[Key], bool]) -> KeyTimes:
        """The rows of some things."""
        kept = np.array([wanted(key) for key in self.keys], bool)[self.key]
        return self if kept.all() else self.at(np.flatnonzero(kept))

    def at(self, rows: Rows) -> KeyTimes:
        """Some of the rows."""
        return KeyTimes(self.keys, self.alikes, *(column[rows] for column in self[2:]))

    def followed_by(self, more: KeyTimes) -> KeyTimes:
        """These rows and others."""
        columns = (np.concatenate(parts) for parts in zip(self[2:], more[2:], strict=True))
        return KeyTimes(self.keys, self.alikes, *columns)


def in_blocks(before: KeyTimes, after: KeyTimes) -> Iterator[tuple[KeyTimes, KeyTimes]]:
    """The times of two runs, those of some things at a time, in the order of their keys; at least one block."""
    sides = before, after
    ordered = [np.argsort(times.key, kind="stable").astype(np.int32) for times in sides]
    starts = [np.append(0, np.cumsum(counts(times.key, len(times.keys)))) for times in sides]
    block = (starts[0] + starts[1])[1:] // _MOST_ROWS
    borders = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(before.keys)]
    for low, high in pairwise(borders):
        first, second = (
            times.at(rows[start[low] : start[high]]) for times, rows, start in zip(sides, ordered, starts, strict=True)
        )
        yield first, second


class Met:
    """Things, texts of like steps and names of kernels, numbered in the order in which all reports had them."""

    def __init__(self) -> None:
        self._place: dict[Key, int] = {}
        self.alikes, self.kernels = Words(), Words()

    def codes(self, what: str, paths: Sequence[str], shapes: Sequence[str | None], at: Rows) -> Rows:
        """The number of the thing of each row, given what things are, their paths and shapes, and which a row is of."""
        used, place = distinct(at)
        keys = ((what, paths[one], shapes[one] or "") for one in used.tolist())
        return np.array([self._place.setdefault(key, len(self._place)) for key in keys], np.int64)[place]

    def sorted(self) -> Sorted:
        """All of them in their order."""
        keys, alikes = [*self._place], self.alikes.all()
        orders = [sorted(range(len(texts)), key=texts.__getitem__) for texts in (keys, alikes)]
        places = (np.argsort(np.array(order, np.int64)) for order in orders)
        return Sorted([keys[at] for at in orders[0]], [alikes[at] for at in orders[1]], *places)


class Sorted(NamedTuple):
    """Things and texts of like steps in their order, and the place there of each number."""

    keys: list[Key]
    alikes: list[str]
    key: Rows
    alike: Rows


class KeyRows:
    """Rows of things and steps of all reports so far."""

    def __init__(self) -> None:
        self._columns: list[list[Ints]] = [[np.empty(0, dtype)] for dtype in _STORED]

    def add(self, *columns: Ints) -> None:
        """Adds those of a report: numbers of things and of texts of steps, times and numbers of kernels."""
        for stored, column, dtype in zip(self._columns, columns, _STORED, strict=True):
            stored.append(column.astype(dtype))

    def times(self, names: Sorted, *, one_step: bool) -> KeyTimes:
        """All of them, which can be asked for once; a single row for each thing where all reports are one step."""
        # One column after the other is put together and given back, so that memory never holds all of them twice.
        columns = [np.concatenate(self._columns.pop(0)) for _ in _STORED]
        for at, place in enumerate((names.key, names.alike)):
            columns[at] = place.astype(np.int32)[columns[at]]
        if one_step:
            found, sums = sums_by(columns[:2], [column.astype(np.int64) for column in columns[2:]])
            columns = [*found, *sums]
        return KeyTimes(names.keys, names.alikes, *columns)
