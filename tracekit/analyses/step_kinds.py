"""Kinds and sizes of steps: only steps that are alike in both are compared, and how the mix of them changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

_SIZES = ("batch_size", "tokens")
#: What steps can tell.
ALL_TOLD = frozenset(("kind", *_SIZES))
#: What a step is called that does not tell its kind.
STEP = "step"
_BEFORE_FIRST = -1
_NO_SIZE = "{}"
#: A share of the steps by which a kind and size must gain or lose for the mix to have changed.
_MIXED = 0.01


class Mix(NamedTuple):
    """How much two runs have in common.

    Attributes:
        covered: Of each side, the share of the time in steps that lies in steps of a kind and size of the other.
        changed: Kinds and sizes of which the steps are another share now: its name, the share before, and after.
        several: Whether there is more than one kind and size.
    """

    covered: tuple[float, float]
    changed: list[tuple[str, float, float]]
    several: bool


def told_by_all(*datasets: Dataset) -> frozenset[str]:
    """What steps of each dataset tell: ``kind``, ``batch_size``, ``tokens``."""
    tables = [dataset.table("steps", ["kind", *_SIZES]) for dataset in datasets]
    return frozenset(
        name for name in ALL_TOLD if all(table.column(name).null_count < table.num_rows for table in tables)
    )


def step_kinds(dataset: Dataset, told: frozenset[str]) -> pd.DataFrame:
    """The kind of every step, its size as JSON, and ``alike``: the same text for steps that can be compared.

    Args:
        dataset: The dataset.
        told: What both datasets tell of steps; the rest tells none apart.

    Returns:
        Rows by ``step_id``; ``size`` is null where a step tells none.
    """
    steps = dataset.table("steps", ["step_id", "kind", *_SIZES])
    said = steps.to_pydict()
    kind = [one or STEP for one in said["kind"]]
    names = [name for name in _SIZES if name in told]
    numbers = zip(*(said[name] for name in names), strict=True) if names else [()] * len(kind)
    size = [json.dumps({name: one for name, one in zip(names, its, strict=True) if one is not None}) for its in numbers]
    rows = {
        "kind": kind,
        "size": [None if one == _NO_SIZE else one for one in size],
        "alike": [f"{one if 'kind' in told else STEP} {its}" for one, its in zip(kind, size, strict=True)],
    }
    return pd.DataFrame(rows, index=pd.Index(said["step_id"], dtype="int64"), dtype=object)


def step_before(dataset: Dataset, work: pd.DataFrame) -> pd.Series[int]:
    """The step of its process that began last before each piece of work was launched, or -1.

    Args:
        dataset: The dataset.
        work: ``pid`` and ``time`` of each, and ``report`` where there are several.
    """
    by = [*([REPORT] if dataset.reports else []), "pid"]
    steps = dataset.table("steps", ["step_id", "start_ns", *by]).to_pandas()
    right, left = (
        side.astype({"pid": "int64", **({REPORT: str} if REPORT in by else {})})
        for side in (steps.rename(columns={"start_ns": "time"}), work)
    )
    found = pd.merge_asof(
        left.sort_values("time", kind="stable").reset_index(),
        right.sort_values("time", kind="stable"),
        on="time",
        by=by,
    )
    step = found.set_index("index")["step_id"].reindex(work.index)
    return step.fillna(_BEFORE_FIRST).astype("int64")


def mix(before: pd.DataFrame, after: pd.DataFrame) -> Mix:
    """What two runs have in common, given a row with ``alike`` and ``ns`` for every step."""
    sides = [side.groupby("alike")["ns"].agg(["size", "sum"]) for side in (before, after)]
    common = sides[0].index.intersection(sides[1].index)
    covered = [float(side["sum"].reindex(common).sum() / max(side["sum"].sum(), 1)) for side in sides]
    shares = [side["size"] / max(side["size"].sum(), 1) for side in sides]
    both = pd.concat(shares, axis=1, keys=("before", "after")).fillna(0.0)
    moved = (both["after"] - both["before"]).abs()
    changed = both[moved > _MIXED].loc[moved.sort_values(ascending=False).index[: (moved > _MIXED).sum()]]
    named = [(_named(str(row[0])), float(row[1]), float(row[2])) for row in changed.itertuples()]
    return Mix((covered[0], covered[1]), named, len(both) > 1)


def _named(alike: str) -> str:
    """``decode of batch_size 8, tokens 8``."""
    kind, _, size = alike.partition(" ")
    parts = ", ".join(f"{name} {number:,}" for name, number in json.loads(size).items())
    return f"{kind} of {parts}" if parts else kind
