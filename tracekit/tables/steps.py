"""``steps``: iterations of training or serving."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa

from tracekit.attribution.base import Trace
from tracekit.schema import CATEGORY, Column, Nullable, TableSpec
from tracekit.tables.base import or_null

SPEC = TableSpec(
    "steps",
    "One row per step of training or serving: a range marked as a step (one around another is the same step, one "
    "around several is none); in a process without such "
    "ranges, from the end of one optimizer step to the end of the next, without evaluation; without "
    "optimizers, each outermost call of the root module that drives its loop, or each pass through "
    "numbered layers if there is no root; where nothing is marked, each pass that is like a step of a marked run "
    "(parse --like). Work outside these belongs to no step.",
    (
        Column("step_id", pa.int64(), "Unique id: the row number, plus the report's first_id."),
        Column(
            "name",
            pa.string(),
            "Text of the range, train for a step of an optimizer, or path of the root module or of the layers' "
            "container.",
        ),
        Nullable("kind", CATEGORY, "train, prefill, decode or mixed; null if the text and optimizers do not show it."),
        Column(
            "index", pa.int64(), "Number of the step in its text, otherwise the number of earlier steps in its process."
        ),
        Column("pid", pa.int32(), "Process id."),
        Nullable("rank", pa.int32(), "Rank of the process in its job; null if unknown."),
        Column("tid", pa.int32(), "Thread id."),
        Column("start_ns", pa.int64(), "Start on the host, in ns since the start of the session."),
        Column("end_ns", pa.int64(), "End on the host; its device work may still be running."),
        Nullable("batch_size", pa.int64(), "Requests or samples in the step; null if the text does not give it."),
        Nullable("tokens", pa.int64(), "Tokens computed in the step; null if the text does not give it."),
        Column("compile_ns", pa.int64(), "Time on the host in which its process compiled models (torch.compile)."),
    ),
    sorted_by=("start_ns",),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The steps by start."""
    steps, threads = trace.evidence.steps, trace.evidence.recording.threads
    counters: dict[int, Iterator[int]] = defaultdict(count)
    ordinals = [next(counters[process]) for process in steps.process.tolist()]
    index = [
        marker.index if marker.index is not None else ordinal
        for marker, ordinal in zip(steps.markers, ordinals, strict=True)
    ]
    yield SPEC.table(
        {
            "step_id": np.arange(steps.start_ns.size),
            "name": pa.array([marker.name for marker in steps.markers], pa.string()),
            "kind": pa.array([marker.kind for marker in steps.markers], pa.string()).cast(CATEGORY),
            "index": pa.array(index, pa.int64()),
            "pid": threads.pid[steps.thread].astype(np.int32),
            "rank": or_null(trace.evidence.recording.process_rank[steps.process]),
            "tid": threads.tid[steps.thread].astype(np.int32),
            "start_ns": steps.start_ns,
            "end_ns": steps.end_ns,
            "batch_size": pa.array([marker.batch_size for marker in steps.markers], pa.int64()),
            "tokens": pa.array([marker.tokens for marker in steps.markers], pa.int64()),
            "compile_ns": trace.evidence.compiling.within(steps.process, steps.start_ns, steps.end_ns),
        }
    )
