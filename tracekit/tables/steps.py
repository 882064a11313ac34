"""``steps``: iterations of training or serving."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa

from tracekit.attribution.base import Trace
from tracekit.schema import tables
from tracekit.tables.base import or_null

SPEC = tables.Steps.SPEC


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
            "name": [marker.name for marker in steps.markers],
            "kind": [marker.kind for marker in steps.markers],
            "index": index,
            "pid": threads.pid[steps.thread].astype(np.int32),
            "rank": or_null(trace.evidence.recording.process_rank[steps.process]),
            "tid": threads.tid[steps.thread].astype(np.int32),
            "start_ns": steps.start_ns,
            "end_ns": steps.end_ns,
            "batch_size": [marker.batch_size for marker in steps.markers],
            "tokens": [marker.tokens for marker in steps.markers],
            "compile_ns": trace.evidence.compiling.within(steps.process, steps.start_ns, steps.end_ns),
        }
    )
