"""What each step cost: on the host, on the device, and per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.devices import WHERE, axis, kernels, steps_of, union
from tracekit.analyses.spread import ratio
from tracekit.analyses.subtrees import integers, summed

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "steps"

_SAID = ("step_id", "kind", "index", "batch_size", "tokens", "rank", "pid", "name")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps in their order. A subtree's are those in which one of its modules was called or had work.

    Returns:
        A row per step: ``report`` (only where there are several), ``step_id``, ``kind``, ``index``,
        ``batch_size``, ``tokens``; ``host_ns`` (from its begin to its end on the host), ``gpu_time_ns`` (sum of the
        work launched in it), ``busy_ns`` (time in which a device ran some of it, over all devices),
        ``gpu_ns_per_token`` (NaN where it tells no tokens), ``kernels``; ``rank``, ``pid``, ``name``.
    """
    named = ["report"] if dataset.reports else []
    steps = dataset.whole.table("steps", [*_SAID, "start_ns", "end_ns", *named])
    work = kernels(dataset, ["step_id", "dur_ns", *WHERE])
    step, on = steps_of(dataset, work), axis(dataset, work)
    count = steps.num_rows
    time = summed(step, integers(work, "dur_ns"), count)
    tokens = integers(steps, "tokens", missing=0)
    found = pd.DataFrame({name: steps.column(name).to_pylist() for name in [*named, *_SAID]}, dtype=object)
    found = found.astype({"step_id": "int64", "index": "int64", "pid": "int64"}).astype(
        dict.fromkeys(("rank", "batch_size", "tokens"), "Int64")
    )
    figures = {
        "host_ns": integers(steps, "end_ns") - integers(steps, "start_ns"),
        "gpu_time_ns": time,
        "busy_ns": union(step, on.start, on.end, count),
        "gpu_ns_per_token": ratio(time, np.maximum(tokens, 0)),
        "kernels": summed(step, None, count),
    }
    said = [*named, *_SAID[: _SAID.index("rank")]]
    found = found.assign(**figures)[[*said, *figures, *_SAID[_SAID.index("rank") :]]]
    if dataset.root is None:
        return found
    called = dataset.table("steps", ["step_id"]).column("step_id").to_pylist()
    inside = found["step_id"].isin(called) | found["kernels"].gt(0)
    return found[inside].reset_index(drop=True)
