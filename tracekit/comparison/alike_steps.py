"""Which steps are alike: of one kind and size, and for long rows of such steps of one place in the row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.weighted_kernels import report_codes
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import REPORT, Dataset

_SIZES = ("batch_size", "tokens")
#: The columns of ``steps`` that distinguish steps.
PROPERTIES = frozenset(("kind", *_SIZES))
#: The kind of steps whose kind is unknown.
STEP = "step"
_TRAIN = "train"
#: So many steps in a row have nearly the same context; what divides their number from the text before it.
_BLOCK, BLOCK_MARK = 16, "\0"
_NO_SIZE = "{}"


def common_properties(*datasets: Dataset) -> frozenset[str]:
    """The properties that steps of every dataset have: ``kind``, ``batch_size``, ``tokens``."""
    found = PROPERTIES
    for dataset in datasets:
        tables = (part.table("steps", [*PROPERTIES]) for part in dataset.by_report())
        found &= {name for table in tables for name in PROPERTIES if table.column(name).null_count < table.num_rows}
    return found


def step_kinds(dataset: Dataset, properties: frozenset[str], *, places: bool = False) -> pd.DataFrame:
    """By ``step_id`` kind, size as JSON or null, and ``alike``: the same text for steps that can be compared.

    With places, only steps are that come as late in a row of like steps, as attention grows with the context; but those
    of trainings.
    """
    steps = dataset.table("steps", ["step_id", "kind", *_SIZES, "pid", "start_ns"]).to_pydict()
    kinds = [kind or STEP for kind in steps["kind"]]
    names = [name for name in _SIZES if name in properties]
    sizes = [
        json.dumps({name: number for name in names if (number := steps[name][row]) is not None})
        for row in range(len(kinds))
    ]
    alike = [f"{kind if 'kind' in properties else STEP} {size}" for kind, size in zip(kinds, sizes, strict=True)]
    if places:
        blocks = _blocks(alike, steps["pid"], steps["start_ns"])
        for row, block in enumerate(blocks):
            if block and kinds[row] != _TRAIN:
                alike[row] += f"{BLOCK_MARK}{block}"
    rows = {"kind": kinds, "size": [None if size == _NO_SIZE else size for size in sizes], "alike": alike}
    return pd.DataFrame(rows, index=pd.Index(steps["step_id"], dtype="int64"), dtype=object)


def _blocks(alike: Sequence[str], pid: Sequence[int], start_ns: Sequence[int]) -> list[int]:
    """The place of each step in the row of like steps of its process, in blocks."""
    place, blocks = 0, [0] * len(alike)
    order = sorted(range(len(alike)), key=lambda step: (pid[step], start_ns[step]))
    for before, step in pairwise([-1, *order]):
        same = before >= 0 and (alike[before], pid[before]) == (alike[step], pid[step])
        place = place + 1 if same else 0
        blocks[step] = place // _BLOCK
    return blocks


def step_before(dataset: Dataset, work: pa.Table) -> Ints:
    """For each kernel the last step of its process that started before its launch, or -1."""
    steps = dataset.table("steps", ["step_id", "start_ns", "pid", *([REPORT] if dataset.reports else [])])
    process, of_step = ((report_codes(dataset, one) << 32) | integers(one, "pid") for one in (work, steps))
    launched = np.asarray(pc.coalesce(work.column("launch_start_ns"), work.column("start_ns")))
    ids, starts = integers(steps, "step_id"), integers(steps, "start_ns")
    before = np.full(launched.size, -1, np.int64)
    for one in np.unique(process).tolist():
        own = np.flatnonzero(of_step == one)
        own = own[np.argsort(starts[own], kind="stable")]
        rows = np.flatnonzero(process == one)
        before[rows] = np.append(ids[own], -1)[np.searchsorted(starts[own], launched[rows], side="right") - 1]
    return before


def step_name(alike: str) -> str:
    """Steps of like kind and size in words: ``decode of batch_size 8, tokens 8``."""
    kind, _, size = alike.partition(" ")
    parts = ", ".join(f"{name} {number:,}" for name, number in json.loads(size).items())
    return f"{kind} of {parts}" if parts else kind
