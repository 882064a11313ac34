"""Times of things in steps as numbers, put together report by report: what medians over steps are taken of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.arrays.groups import distinct, sums_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arrays.types import Ints, Rows

#: The columns that name a thing to compare.
KEYS = ["what", "path", "shapes"]
#: What they say of one; its shapes are empty where they are not told apart.
Key: TypeAlias = tuple[str, str, str]


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
    """Rows of things and steps of all reports so far: 24 bytes each."""

    def __init__(self) -> None:
        """None yet."""
        self._parts: list[tuple[Rows, Rows, Ints, Ints]] = []

    def add(self, key: Rows, alike: Rows, ns: Ints, kernels: Ints) -> None:
        """Adds those of a report."""
        self._parts.append((key.astype(np.int32), alike.astype(np.int32), ns, kernels.astype(np.int64)))

    def times(self, keys: Sequence[Key], alikes: Sequence[str], *, one_step: bool) -> KeyTimes:
        """All of them, which can be asked for once.

        Args:
            keys: The things.
            alikes: The texts of steps.
            one_step: Whether all reports count as one step, so that each thing has a single row.
        """
        parts, self._parts = self._parts, []
        none: list[tuple[Ints, ...]] = [(np.empty(0, np.int64),) * 4]
        key, alike, ns, kernels = (np.concatenate(columns) for columns in zip(*(parts or none), strict=True))
        if one_step:
            (key, alike), (ns, kernels) = sums_by((key, alike), (ns, kernels))
        return KeyTimes(keys, alikes, key, alike, ns, kernels)
