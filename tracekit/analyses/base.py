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

    # ``COMPARES_REPORTS``, where a module has it and it is true, says that it cannot be asked of one report only.
    # ``OPTIONS``, where a module has it, names the keywords of ``frame`` that the command line passes on.

    def frame(self, dataset: Dataset, /) -> pd.DataFrame:
        """The answer, with units in the names of its columns."""
