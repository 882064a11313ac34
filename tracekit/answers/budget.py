"""Where did the wall clock of each step go: what did each device do, and what did it wait for while it was idle?

The kinds of time are those of :mod:`tracekit.steptime.budget`.
"""

from __future__ import annotations

import pandas as pd

from tracekit.dataset.opening import Dataset
from tracekit.steptime.budget import IDS, columns as columns

NAME = "budget"
ANSWER = ("step_id", "kind", "ns", "share", "path")


def frame(dataset: Dataset) -> pd.DataFrame:
    """The windows of every process and device in their order, each divided by kind and module.

    Returns:
        A row per window, kind and module: ``report`` (only in a dataset of several), ``pid``, ``device``, ``step_id``
        (null where no work of the device has a step, so that all of it is one window), ``kind`` (see
        :mod:`tracekit.steptime.budget`), ``path`` (of a device that works, the module of the work that started last
        among those of the kind; else the innermost call at that instant on the thread of which it counts what it did;
        null outside modules), ``ns``, ``share`` (of the window) and ``window_ns``, to which the rows of a window add
        up.

    Raises:
        UsageError: If the dataset is a subtree: a device is idle for whatever comes next, of any module.
    """
    answer = columns(dataset)
    return pd.DataFrame(answer | {name: pd.array(answer[name], "Int64") for name in IDS}, copy=False)
