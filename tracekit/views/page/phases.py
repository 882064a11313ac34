"""Phases of training on the page: which ones the dataset has, and the time of each module in them.

Without backward, recomputation or optimizer there was no training, and the page says nothing of phases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.analyses.phase_times import PHASES, TRAINING, outside, phase_times
from tracekit.views.page.limits import clipped
from tracekit.views.wording import records

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.dataset.opening import Dataset


class Phases(NamedTuple):
    """The phases of a dataset.

    Attributes:
        names: Those in which time was spent, if there was training.
        data: The same for the page, with the time of each and of work outside modules by cause.
        own: For each module, in pre-order, its own time by phase: ``self_forward_ns`` and so on.
    """

    names: list[str]
    data: dict[str, Any]
    own: dict[str, Ints]


def phases(dataset: Dataset) -> Phases:
    """The phases of a dataset and what was spent in them."""
    own = phase_times(dataset).own
    causes = outside(dataset)
    total = {name: int(own[name].sum()) + int(causes[name].sum()) for name in own}
    if not any(total[name] for name in TRAINING):
        return Phases([], {"names": [], "total_ns": [], "causes": []}, {})
    names = [name for name in PHASES if total[f"{name}_ns"]]
    rows = records(causes[["cause", *(f"{name}_ns" for name in names)]])
    data = {
        "names": names,
        "total_ns": [total[f"{name}_ns"] for name in names],
        "causes": [{**row, "cause": clipped(row["cause"])} for row in rows],
    }
    return Phases(names, data, {f"self_{name}_ns": own[f"{name}_ns"] for name in names})
