"""Sums by module of figures that may be unknown, or too large to be true."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.arrays.groups import counts, sums

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Floats, Ints, Rows

_LARGEST = 2.0**62


class Sum(NamedTuple):
    """A number for each module, of which parts may be unknown or too large.

    Attributes:
        value: The sum of what is known.
        lacking: How many of its parts are unknown.
        large: The sum as a float, which tells whether ``value`` holds it.
    """

    value: Ints
    lacking: Ints
    large: Floats

    @classmethod
    def of(cls, value: Ints, known: Flags) -> Sum:
        """Some numbers, of which some are unknown."""
        return cls(value.astype(np.int64), (~known).astype(np.int64), value.astype(np.float64))

    @classmethod
    def zero(cls, modules: int) -> Sum:
        """Nothing so far."""
        return cls.of(np.zeros(modules, np.int64), np.ones(modules, bool))

    @property
    def known(self) -> Flags:
        """Which of the numbers are known."""
        known: Flags = (self.lacking == 0) & (self.large < _LARGEST)
        return known

    def column(self) -> pd.arrays.IntegerArray:
        """For a DataFrame: null where unknown."""
        return pd.arrays.IntegerArray(self.value.astype(np.int64), ~self.known)

    def floats(self) -> Floats:
        """As floats: NaN where unknown."""
        return np.where(self.known, self.value, np.nan)

    def inclusive(self, modules: Hierarchy) -> Sum:
        """With all modules below; known if all of them are."""
        known = np.where(self.known, self.value, 0)
        lacking = modules.inclusive((~self.known).astype(np.int64))
        return Sum(
            modules.inclusive(known), lacking, np.asarray(modules.inclusive(known.astype(np.float64)), np.float64)
        )

    def plus(self, other: Sum) -> Sum:
        """Both together; known if both are."""
        return Sum(self.value + other.value, self.lacking + other.lacking, self.large + other.large)

    def unless(self, unknown: Flags) -> Sum:
        """The same numbers, some of which are unknown."""
        return self._replace(lacking=self.lacking + unknown)


def totals(owner: Rows, one_run: Ints, runs: Ints, modules: int) -> Sum:
    """Adds up the figure of one run over all runs; unknown if any call's is. Zero times anything is zero."""
    known = (one_run == 0) | ((one_run > 0) & (runs >= 0))
    counted = np.where(known, one_run, 0)
    often = np.where(known & (one_run > 0), runs, 0)
    large = np.bincount(owner, counted.astype(np.float64) * often, minlength=modules)
    with np.errstate(over="ignore"):
        value = sums(owner, counted * often, modules)
    return Sum(value, counts(owner[~known], modules), np.asarray(large, np.float64))
