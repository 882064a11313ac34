"""The wall clock of steps in two runs, which can change where the time of no module does.

That of a step is its window (see :mod:`tracekit.steptime.windows`). Only steps of the same kind, batch size, tokens and
place in a row of such steps are compared: of each the medians, weighted by how many both runs have, so that another mix
is no change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.comparison.step_metrics import common_properties, step_kinds
from tracekit.dataset.opening import Dataset
from tracekit.steptime.budget import step_lengths


class WallClock(NamedTuple):
    """The mean over the sizes of steps that both runs have of each one's median wall clock, in ns."""

    before_ns: int
    after_ns: int


def wall_clocks(before: Dataset, after: Dataset) -> dict[str, WallClock]:
    """By kind of step; kinds of which no size is in both runs are left out."""
    properties = common_properties(before, after)
    sides = _medians(before, properties), _medians(after, properties)
    both = sides[0].merge(sides[1], on="alike", suffixes=("_before", "_after"))
    kinds = np.array([alike.partition(" ")[0] for alike in both["alike"]], dtype=object)
    weight = both[["steps_before", "steps_after"]].min(axis=1)
    found = {}
    for kind in dict.fromkeys(kinds):
        own = kinds == kind
        means = (np.average(both[name][own], weights=weight[own]) for name in ("ns_before", "ns_after"))
        found[kind] = WallClock(*(round(float(mean)) for mean in means))
    return found


def _medians(dataset: Dataset, properties: frozenset[str]) -> pd.DataFrame:
    """Steps alike in kind and size, with their median wall clock ``ns``, and the number of ``steps``."""
    parts = []
    for part, step, ns in step_lengths(dataset.whole):
        windows = pd.DataFrame({"ns": ns}, index=step).query("ns > 0")
        parts.append(windows.join(step_kinds(part, properties, places=True)["alike"], how="inner"))
    return pd.concat(parts).groupby("alike", sort=False)["ns"].agg(ns="median", steps="size").reset_index()
