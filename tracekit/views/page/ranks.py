"""Ranks side by side: what each does in a step, and its own time in every step, the slowest rank first."""

from typing import Any

import numpy as np

from tracekit.answers import ranks as of_ranks
from tracekit.arrays.types import Floats
from tracekit.dataset.opening import Dataset
from tracekit.steptime.budget import Budgets
from tracekit.steptime.own_times import times_of
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped


def ranks(dataset: Dataset, processes: int, budgets: Budgets | None) -> dict[str, Any]:
    """The rows of the question ``ranks``, if there are several processes and devices with known windows.

    Returns:
        ``rows``; ``own``: of each row the own time of its steps, in order; of more steps than there is room for,
        neighbours share a value, the longest; ``left_out``: how many rows are not listed.
    """
    if processes < 2 or budgets is None:  # noqa: PLR2004 - one is no company
        return {"rows": [], "own": [], "left_out": 0}
    times = times_of(budgets)
    order = of_ranks.order(times)
    shown = order[: limits.ROWS]
    rows = records(of_ranks.rows(dataset, times, shown))
    for row in rows:
        for name in ("report", "host", "gpu", "path"):
            row[name] = row[name] and clipped(row[name])
    own = [_longest(times.own_ns[row]) for row in shown]
    return {"rows": rows, "own": own, "left_out": order.size - shown.size}


def _longest(own_ns: Floats) -> list[int]:
    time = own_ns[~np.isnan(own_ns)].astype(np.int64)
    first = np.unique(np.arange(limits.RANK_STEPS) * time.size // limits.RANK_STEPS)
    longest: list[int] = (time if time.size <= limits.RANK_STEPS else np.maximum.reduceat(time, first)).tolist()
    return longest
