"""What an analysis is."""

from __future__ import annotations

from typing import Protocol

import pandas as pd

from tracekit.dataset.opening import Dataset


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
