"""Kinds and sizes of steps: only steps that are alike in both are compared; and how the mix of them changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from tracekit.analyses.key_times import KeyTimes
    from tracekit.dataset.opening import Dataset

_SIZES = ("batch_size", "tokens")
#: The columns of ``steps`` that tell steps apart.
PROPERTIES = frozenset(("kind", *_SIZES))
#: The kind of steps whose kind is unknown.
STEP = "step"
_BEFORE_FIRST = -1
_NO_SIZE = "{}"
#: The mix of steps changed if a kind and size gained or lost more than this share of the steps.
_MIX_CHANGE = 0.01


class Mix(NamedTuple):
    """How much two runs have in common.

    Attributes:
        covered: For each side, the share of its time in steps whose kind and size the other side has, too.
        changed: Kinds and sizes whose share of the steps changed: the name, the share before and after.
        several: Whether there is more than one kind and size.
    """

    covered: tuple[float, float]
    changed: list[tuple[str, float, float]]
    several: bool


def common_properties(*datasets: Dataset) -> frozenset[str]:
    """The properties that steps of every dataset have: ``kind``, ``batch_size``, ``tokens``."""
    return PROPERTIES.intersection(*map(_properties, datasets))


def _properties(dataset: Dataset) -> set[str]:
    """The properties that any step of a dataset has."""
    tables = (part.table("steps", [*PROPERTIES]) for part in dataset.by_report())
    return {name for table in tables for name in PROPERTIES if table.column(name).null_count < table.num_rows}


def step_kinds(dataset: Dataset, properties: frozenset[str]) -> pd.DataFrame:
    """The kind of every step, its size as JSON, and ``alike``: the same text for steps that can be compared.

    Args:
        dataset: The dataset.
        properties: The properties that tell steps apart.

    Returns:
        Rows by ``step_id``; ``size`` is null if the step's size is unknown.
    """
    steps = dataset.table("steps", ["step_id", "kind", *_SIZES]).to_pydict()
    kinds = [kind or STEP for kind in steps["kind"]]
    names = [name for name in _SIZES if name in properties]
    sizes = [_size(names, [steps[name][row] for name in names]) for row in range(len(kinds))]
    rows = {
        "kind": kinds,
        "size": [None if size == _NO_SIZE else size for size in sizes],
        "alike": [f"{kind if 'kind' in properties else STEP} {size}" for kind, size in zip(kinds, sizes, strict=True)],
    }
    return pd.DataFrame(rows, index=pd.Index(steps["step_id"], dtype="int64"), dtype=object)


def _size(names: list[str], numbers: list[int | None]) -> str:
    """The known numbers as JSON."""
    return json.dumps({name: number for name, number in zip(names, numbers, strict=True) if number is not None})


def step_before(dataset: Dataset, work: pd.DataFrame) -> pd.Series[int]:
    """For each piece of work the last step of its process that started before its launch, or -1.

    Args:
        dataset: The dataset.
        work: ``pid`` and ``time`` of each launch, and ``report`` in a dataset of several.
    """
    by = [*([REPORT] if dataset.reports else []), "pid"]
    steps = dataset.table("steps", ["step_id", "start_ns", *by]).to_pandas()
    right, left = (
        side.astype({"pid": "int64", **({REPORT: str} if REPORT in by else {})})
        for side in (steps.rename(columns={"start_ns": "time"}), work)
    )
    nearest = pd.merge_asof(
        left.sort_values("time", kind="stable").reset_index(),
        right.sort_values("time", kind="stable"),
        on="time",
        by=by,
    )
    step = nearest.set_index("index")["step_id"].reindex(work.index)
    return step.fillna(_BEFORE_FIRST).astype("int64")


def mix(before: KeyTimes, after: KeyTimes) -> Mix:
    """Compares the steps of two runs, given a row for every step."""
    sides = [_by_likeness(side).groupby("alike")["ns"].agg(["size", "sum"]) for side in (before, after)]
    common = sides[0].index.intersection(sides[1].index)
    covered = [float(side["sum"].reindex(common).sum() / max(side["sum"].sum(), 1)) for side in sides]
    shares = [side["size"] / max(side["size"].sum(), 1) for side in sides]
    both = pd.concat(shares, axis=1, keys=("before", "after")).fillna(0.0)
    moved = (both["after"] - both["before"]).abs()
    changed = both[moved > _MIX_CHANGE].loc[moved.sort_values(ascending=False).index[: (moved > _MIX_CHANGE).sum()]]
    named = [(_named(str(row[0])), float(row[1]), float(row[2])) for row in changed.itertuples()]
    return Mix((covered[0], covered[1]), named, len(both) > 1)


def _by_likeness(steps: KeyTimes) -> pd.DataFrame:
    return pd.DataFrame({"alike": np.array(steps.alikes, object)[steps.alike], "ns": steps.ns})


def _named(alike: str) -> str:
    """``decode of batch_size 8, tokens 8``."""
    kind, _, size = alike.partition(" ")
    parts = ", ".join(f"{name} {number:,}" for name, number in json.loads(size).items())
    return f"{kind} of {parts}" if parts else kind
