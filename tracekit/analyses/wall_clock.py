"""The wall clock of steps in two runs, which can change where the time of no module does.

A step's window goes to the beginning of the next one on its device, as in :mod:`tracekit.analyses.budget`. Only steps
of the same kind, batch size and tokens are compared: of each size the medians, weighted by how many of it both runs
have, so that another mix of sizes is no change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.budget import step_lengths
from tracekit.arrays.columns import integers
from tracekit.dataset.opening import Dataset

_SIZE = ["kind", "batch_size", "tokens"]
_UNKNOWN = -1


class WallClock(NamedTuple):
    """The mean over the sizes of steps that both runs have of each one's median wall clock, in ns."""

    before_ns: int
    after_ns: int


def wall_clocks(before: Dataset, after: Dataset) -> dict[str, WallClock]:
    """By kind of step; kinds of which no size is in both runs are left out."""
    sides = _medians(before), _medians(after)
    both = sides[0].merge(sides[1], on=_SIZE, suffixes=("_before", "_after"))
    weight = both[["steps_before", "steps_after"]].min(axis=1).to_numpy()
    found = {}
    for kind in dict.fromkeys(both["kind"]):
        own = (both["kind"] == kind).to_numpy()
        means = (np.average(both[name][own], weights=weight[own]) for name in ("ns_before", "ns_after"))
        found[kind] = WallClock(*(round(float(mean)) for mean in means))
    return found


def _medians(dataset: Dataset) -> pd.DataFrame:
    """The sizes of steps with their median wall clock ``ns``, and the number of ``steps``."""
    parts = []
    for part, step, ns in step_lengths(dataset.whole):
        steps = part.table("steps", ["step_id", *_SIZE])
        sizes = {name: integers(steps, name, _UNKNOWN) for name in ("step_id", *_SIZE[1:])}
        known = pd.DataFrame({**sizes, "kind": steps.column("kind").to_pylist()})
        parts.append(pd.DataFrame({"step_id": step, "ns": ns}).query("ns > 0").merge(known, on="step_id"))
    return pd.concat(parts).groupby(_SIZE, sort=False)["ns"].agg(ns="median", steps="size").reset_index()
