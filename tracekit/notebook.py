"""Datasets as people hold them in notebooks: tables, and answers, pages and summaries on top.

Views are loaded when they are used: :func:`tracekit.load` does not import pandas or rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.dataset import opening

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.views.inline import Page


class Dataset(opening.Dataset):
    """A dataset on disk, or the part of it that belongs to one module's subtree, which also answers questions.

    ``dataset.kernels()`` and the other tables give DataFrames, ``dataset.table("kernels")`` gives Arrow. In a dataset
    of several reports, the rows of each report follow one another, sorted within the report, with a column ``report``;
    ``modules`` is one table for all. If another parse replaces the dataset after it was opened, reading is refused.
    """

    def ask(self, question: str, *, path: str | None = None, by: str | None = None, **options: Any) -> pd.DataFrame:  # noqa: ANN401
        """The answer of a question as a DataFrame, with units in the names of its columns.

        Args:
            question: Its name; ``tracekit.questions()`` lists them.
            path: Only this module, or those of a pattern (``top.layers.*``), and those below; shares are of their time.
            by: ``rank``, ``report`` or ``host``: the figures of each of them, side by side.
            options: Options of the question, such as ``dtype="bfloat16"`` of ``roofline``.

        Raises:
            UsageError: If there is no such question, or it has no such option.
            DatasetError: If the dataset has no such module.
        """
        from tracekit.views import inline  # noqa: PLC0415 - takes pandas

        return inline.ask(self, question, path, by, options)

    def html(self, height: int = 720) -> Page:
        """The page that ``tracekit html`` writes, for a notebook to show in a frame of so many pixels."""
        from tracekit.views import inline  # noqa: PLC0415 - as above

        return inline.inline_page(self, height)

    def _repr_html_(self) -> str:
        from tracekit.views import inline  # noqa: PLC0415 - as above

        return inline.as_html(self)
