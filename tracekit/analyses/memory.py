"""What modules hold, read and write: bytes of parameters, inputs, outputs and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.costs.calls import costs
from tracekit.analyses.costs.modules import Sum, totals
from tracekit.analyses.spread import ratio
from tracekit.analyses.subtrees import integers, summed
from tracekit.arrays.labels import labels
from tracekit.flops.peaks import dtypes_stated
from tracekit.flops.tensors import param_bytes

if TYPE_CHECKING:
    from tracekit.analyses.costs.calls import Costs
    from tracekit.dataset.opening import Dataset

NAME = "memory"
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("dtype",)


def frame(dataset: Dataset, *, dtype: str | None = None) -> pd.DataFrame:
    """Modules by the memory that they and those below them need for parameters, the most first.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: That of layers that multiply and whose markers tell no dtype (vLLM's, SGLang's), ``bfloat16``.

    Returns:
        A row per module: ``path``, ``class_name``, ``runs`` (calls, those that were captured as often as their graph
        was replayed), ``self_ns`` (GPU time of its own work), ``param_bytes`` (size of its own parameters, once),
        ``inclusive_param_bytes`` (with all below; a parameter that modules share counts in each), ``input_bytes`` and
        ``output_bytes`` (of what went in and came out, in all runs), ``bytes`` (the least that its own work must move
        in all runs, as in ``roofline``), ``gb_per_s`` (of that, in its own time), ``copied_bytes`` (what it copied and
        set itself) and ``copied_ns`` (the time of that). Null where a dtype or shape is not told.

    Raises:
        UsageError: If the dtype is none.
    """
    found = costs(dataset, dtypes_stated(dtype))
    count = len(found.modules.path)
    held, of_calls = _held(dataset, found), {name: found.column(name) for name in _FIGURES}
    sums = {name: totals(found.owner, one, found.runs, count) for name, one in of_calls.items()}
    runs = totals(found.owner, np.ones_like(found.runs), found.runs, count)
    own = summed(found.owner, integers(found.table, "gpu_self_time_ns"), count)
    whole = held.inclusive(found.modules)
    answer = pd.DataFrame(
        {
            "path": pd.array(found.modules.path, dtype=object),
            "class_name": pd.array(found.modules.class_name, dtype=object),
            "runs": runs.column(),
            "self_ns": own,
            "param_bytes": held.column(),
            "inclusive_param_bytes": whole.column(),
            **{name: one.column() for name, one in sums.items()},
            "gb_per_s": ratio(sums["bytes"].floats(), own),
            **_copied(found),
        }
    )
    order = np.argsort(-np.where(whole.known, whole.value, -1), kind="stable")
    return answer.iloc[order].reset_index(drop=True)


_FIGURES = ("input_bytes", "output_bytes", "bytes")


def _held(dataset: Dataset, found: Costs) -> Sum:
    """Bytes of the parameters of each module itself: as told of it, or as found of its calls."""
    of_calls = np.full(len(found.modules.path), -1, dtype=np.int64)
    np.maximum.at(of_calls, found.owner, found.column("param_bytes"))
    params = dataset.table("modules", ["params"]).column("params").to_pylist()
    sizes = [param_bytes([(one["shape"], one["dtype"]) for one in its]) for its in params]
    told = np.array([-1 if size is None else size for size in sizes], dtype=np.int64)
    value = np.where(told < 0, of_calls, told)
    return Sum(value, value >= 0)


def _copied(found: Costs) -> dict[str, object]:
    """Bytes and time of the copies of each module itself."""
    table, count = found.work.table, len(found.modules.path)
    kinds = labels(table, "kind")
    rows = np.flatnonzero(np.isin(kinds.code, kinds.of("memcpy", "memset")))
    owner = found.modules.rows(table)[rows]
    moved = integers(table, "bytes", missing=0)[rows]
    untold = owner[np.asarray(table.column("bytes").is_null())[rows]]
    known = summed(untold, None, count) == 0
    return {
        "copied_bytes": Sum(summed(owner, moved, count), known).column(),
        "copied_ns": summed(owner, integers(table, "dur_ns")[rows], count),
    }
