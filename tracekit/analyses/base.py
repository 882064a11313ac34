"""What an analysis is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.dataset.opening import Dataset


class Analysis(Protocol):
    """A module that asks one question of a dataset."""

    __name__: str
    #: How the command line names it.
    NAME: str

    # An analysis whose ``frame`` takes keywords that the command line has options for names these in ``OPTIONS``.

    def frame(self, dataset: Dataset, /) -> pd.DataFrame:
        """The answer, with units in the names of its columns."""
