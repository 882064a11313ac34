"""Times of things in steps as numbers, put together report by report: what medians over steps are taken of."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.arrays.groups import distinct, sums_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.arrays.types import Ints, Rows

#: The columns that name a thing to compare.
KEYS = ["what", "path", "shapes"]
#: What they say of one; its shapes are empty where they are not told apart.
Key: TypeAlias = tuple[str, str, str]

#: Types of the columns of :class:`KeyRows`.
_STORED = (np.int32, np.int32, np.int64, np.int32)
#: How many rows of both runs are judged at a time.
_MOST_ROWS = 1 << 17


class KeyTimes(NamedTuple):
    """The times of things, a row per thing and step in which it had work.

    Attributes:
        keys: The things, of which some may have no rows.
        alikes: Texts that are equal for steps of like kind and size.
        key: The thing of each row.
        alike: The text of its step.
        ns: Its time; of a module, that of its subtree.
        kernels: How many kernels that is.
    """

    keys: Sequence[Key]
    alikes: Sequence[str]
    key: Rows
    alike: Rows
    ns: Ints
    kernels: Ints

    def met(self) -> set[Key]:
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
        """These rows and others with the same keys."""
        columns = (np.concatenate(parts) for parts in zip(self[2:], more[2:], strict=True))
        return KeyTimes(self.keys, self.alikes, *columns)


class Keys:
    """The things in all reports so far, numbered in the order in which they were met."""

    def __init__(self) -> None:
        """None yet."""
        self._place: dict[Key, int] = {}

    def codes(self, what: str, paths: Sequence[str], shapes: Sequence[str | None], at: Rows) -> Rows:
        """The number of the thing of each row.

        Args:
            what: What these things are.
            paths: The path of each.
            shapes: Its shapes, or None.
            at: The thing of each row.
        """
        used, place = distinct(at)
        keys = ((what, paths[one], shapes[one] or "") for one in used.tolist())
        return np.array([self._place.setdefault(key, len(self._place)) for key in keys], np.int64)[place]

    def named(self) -> list[Key]:
        """The things by number."""
        return [*self._place]


class KeyRows:
    """Rows of things and steps of all reports so far: 20 bytes each."""

    def __init__(self) -> None:
        """None yet."""
        self._columns: list[list[Ints]] = [[np.empty(0, dtype)] for dtype in _STORED]

    def add(self, *columns: Ints) -> None:
        """Adds those of a report: things, texts of steps, times and numbers of kernels."""
        for stored, column, dtype in zip(self._columns, columns, _STORED, strict=True):
            stored.append(column.astype(dtype))

    def times(self, keys: Sequence[Key], alikes: Sequence[str], *, one_step: bool) -> KeyTimes:
        """All of them, which can be asked for once.

        Args:
            keys: The things.
            alikes: The texts of steps.
            one_step: Whether all reports count as one step, so that each thing has a single row.
        """
        # One column after the other is put together and given back, so that memory never holds all of them twice.
        columns = [np.concatenate(self._columns.pop(0)) for _ in _STORED]
        if one_step:
            found, sums = sums_by(columns[:2], [column.astype(np.int64) for column in columns[2:]])
            columns = [*found, *sums]
        return KeyTimes(keys, alikes, *columns)


def in_blocks(before: KeyTimes, after: KeyTimes) -> Iterator[tuple[KeyTimes, KeyTimes]]:
    """The times of two runs, those of some things at a time, in the order of their keys; at least one block."""
    sides = _ByKey(before), _ByKey(after)
    every = sorted(before.met() | after.met())
    block = np.cumsum([sum(side.size(key) for side in sides) for key in every]) // _MOST_ROWS
    for keys in np.split(np.arange(len(every)), np.flatnonzero(np.diff(block)) + 1):
        named = [every[at] for at in keys.tolist()]
        yield sides[0].of(named), sides[1].of(named)


class _ByKey:
    """The rows of each thing."""

    def __init__(self, times: KeyTimes) -> None:
        self._times, self._order = times, np.argsort(times.key, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(times.key, minlength=len(times.keys))).tolist()
        self._rows: dict[Key, tuple[int, int]] = dict(zip(times.keys, pairwise([0, *ends]), strict=True))

    def size(self, key: Key) -> int:
        """How many rows a thing has."""
        low, high = self._rows.get(key, (0, 0))
        return high - low

    def of(self, keys: Sequence[Key]) -> KeyTimes:
        """The rows of some things, in the order of these."""
        rows = np.concatenate([self._order[:0], *(self._order[slice(*self._rows.get(key, (0, 0)))] for key in keys)])
        at = np.repeat(np.arange(len(keys)), [self.size(key) for key in keys])
        return self._times.at(rows)._replace(keys=keys, key=at)
