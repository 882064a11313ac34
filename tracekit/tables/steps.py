"""``steps``: iterations of training or serving."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables.base import or_null

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.attribution.base import Trace

SPEC = TableSpec(
    "steps",
    "One row per step: a range that says so; in a process without one, each outermost call of the root module that "
    "leads its loop, or each pass through numbered layers without a root. Work beside these calls is of no step.",
    (
        Column("step_id", pa.int64(), "The row's number, from its report's first_id on."),
        Column(
            "name",
            pa.string(),
            "Text of the range, or path of the root module or of the layers' container.",
        ),
        Column(
            "kind",
            CATEGORY,
            "train, prefill, decode or mixed; null if the name does not say.",
            nullable=True,
        ),
        Column(
            "index",
            pa.int64(),
            "Number that the name says, else how many steps its process made before.",
        ),
        Column("pid", pa.int32(), "Process."),
        Column("rank", pa.int32(), "Rank of the process in its job.", nullable=True),
        Column("tid", pa.int32(), "Thread."),
        Column("start_ns", pa.int64(), "When it began on the host."),
        Column("end_ns", pa.int64(), "When it ended on the host; its work may still be running."),
        Column("batch_size", pa.int64(), "Requests or samples in it.", nullable=True),
        Column("tokens", pa.int64(), "Tokens computed in it.", nullable=True),
    ),
    sorted_by=("start_ns",),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The steps by start."""
    steps, threads = trace.evidence.steps, trace.evidence.recording.threads
    counters: dict[int, Iterator[int]] = defaultdict(count)
    ordinals = [next(counters[process]) for process in steps.process.tolist()]
    index = [said.index if said.index is not None else at for said, at in zip(steps.says, ordinals, strict=True)]
    yield SPEC.table(
        {
            "step_id": np.arange(steps.start_ns.size),
            "name": pa.array([said.name for said in steps.says], pa.string()),
            "kind": pa.array([said.kind for said in steps.says], pa.string()).cast(CATEGORY),
            "index": pa.array(index, pa.int64()),
            "pid": threads.pid[steps.thread].astype(np.int32),
            "rank": or_null(trace.evidence.recording.process_rank[steps.process]),
            "tid": threads.tid[steps.thread].astype(np.int32),
            "start_ns": steps.start_ns,
            "end_ns": steps.end_ns,
            "batch_size": pa.array([said.batch_size for said in steps.says], pa.int64()),
            "tokens": pa.array([said.tokens for said in steps.says], pa.int64()),
        }
    )
