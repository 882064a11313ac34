"""What an analysis is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from tracekit.arrays.types import Flags, Rows
from tracekit.dataset.opening import Dataset

#: An answer by the names of its columns, as an analysis gives it without pandas.
Columns = dict[str, np.ndarray[Any, Any]]


class Analysis(Protocol):
    """A module that answers one question about a dataset. The first line of its docstring is the question."""

    __name__: str
    #: Its name on the command line.
    NAME: str

    # A module with ``COMPARES_REPORTS = True`` needs several reports.
    # ``columns``, where a module has it, gives the columns of ``frame`` without loading pandas, in half the time.
    # ``OPTIONS``, where a module has it, names the keywords of ``frame`` that the command line passes on.

    @property
    def ANSWER(self) -> tuple[str, ...]:  # noqa: N802 - a constant of the module
        """The columns that answer the question, the most important first; a terminal of 80 columns shows them all."""

    def frame(self, dataset: Dataset, /) -> pd.DataFrame:
        """The answer, with units in the names of its columns."""


def taken(columns: Columns, rows: Rows | Flags | slice) -> Columns:
    """Some rows of an answer."""
    return {name: values[rows] for name, values in columns.items()}


def together(parts: Sequence[Columns]) -> Columns:
    """The rows of several answers of the same columns."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def with_nulls(columns: Columns, names: Iterable[str]) -> Columns:
    """An answer with None in place of -1 in some of its columns."""
    objects = {name: columns[name].astype(object) for name in names}
    for name, values in objects.items():
        values[columns[name] < 0] = None
    return columns | objects
