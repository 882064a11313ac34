"""Where can wall-clock time be saved?

Families of findings and what each saves: :mod:`tracekit.steptime.findings`.
"""

from __future__ import annotations

import pandas as pd

from tracekit.dataset.opening import Dataset
from tracekit.steptime.findings import columns

NAME = "findings"
ANSWER = ("family", "module", "saving_share", "saving_ns", "advice")


def frame(dataset: Dataset) -> pd.DataFrame:
    """How much of a step can be saved, the most first.

    Returns:
        A row per finding: ``family``, ``module`` (path, of layers that are alike as a pattern; null outside modules),
        ``rank`` (from 1), ``saving_ns`` (the most that mending it saves of a step, by the
        model with 3 % for its error; what findings save together can be less than their sum), ``saving_share`` (of that
        step), ``evidence`` (``table``, the first ``ids`` of rows there, of ``waits`` their ``start_ns``, their
        ``count``, and the ``command`` that shows more) and ``advice``.
        The notes ``recorder``, ranked 0, and ``unexplained``, the last, save 0.

    Raises:
        UsageError: If the dataset is a subtree.
    """
    return pd.DataFrame(columns(dataset))
