"""How many bytes do modules hold, read, write and copy?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.costs.calls import costs
from tracekit.analyses.costs.modules import Sum, totals
from tracekit.analyses.spread import ratio
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, maxima, sums
from tracekit.arrays.labels import labels
from tracekit.flops.peaks import dtypes_stated
from tracekit.flops.tensors import param_bytes
from tracekit.markers.kinds import MODULE

if TYPE_CHECKING:
    from tracekit.analyses.costs.calls import Costs
    from tracekit.dataset.opening import Dataset

NAME = "memory"
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("dtype",)

_FIGURES = ("input_bytes", "output_bytes", "bytes")


def frame(dataset: Dataset, *, dtype: str | None = None) -> pd.DataFrame:
    """Modules by the size of the parameters of their subtree, the largest first.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: The dtype of matrix products where markers record none (vLLM, SGLang), such as ``bfloat16``.

    Returns:
        A row per module: ``path``, ``class_name``, ``runs`` (calls; a call during a graph capture counts once per
        replay), ``self_ns`` (GPU time of its calls' own work), ``param_bytes`` (size of its own parameters, once),
        ``inclusive_param_bytes`` (with all modules below; a parameter that modules share counts in each),
        ``input_bytes`` and ``output_bytes`` (of inputs and outputs in all runs), ``bytes`` (the least that its own work
        must move in all runs, as in ``roofline``), ``gb_per_s`` (``bytes`` in its own time), ``copied_bytes`` (what it
        copied and set itself) and ``copied_ns`` (the time of that). Null where a dtype or shape is not recorded.

    Raises:
        UsageError: If there is no such dtype.
    """
    calls = costs(dataset, dtypes_stated(dtype))
    count = len(calls.modules.path)
    params = _params(dataset, calls)
    inclusive_params = params.inclusive(calls.modules)
    compiled, called = calls.compiled, counts(calls.owner, count) > 0
    # Kernel maps tell no tensors, and not how often a module ran.
    untold = compiled.served(count) & ~called
    moved = {name: totals(calls.owner, calls.column(name), calls.runs, count) for name in _FIGURES}
    moved = {name: total._replace(known=total.known & ~untold) for name, total in moved.items()}
    runs = totals(calls.owner, np.ones_like(calls.runs), calls.runs, count)
    own_ns = sums(calls.owner, integers(calls.table, "gpu_self_time_ns") - compiled.of_call, count)
    own_ns += sums(compiled.module, compiled.ns, count)
    mixed, _ = calls.work.hidden.mixed(calls.modules, calls.owner)
    answer = pd.DataFrame(
        {
            "path": pd.array(calls.modules.path, dtype=object),
            "class_name": pd.array(calls.modules.class_name, dtype=object),
            "runs": runs._replace(known=runs.known & ~untold).column(),
            "self_ns": own_ns,
            "param_bytes": params.column(),
            "inclusive_param_bytes": inclusive_params.column(),
            **{name: total.column() for name, total in moved.items()},
            "gb_per_s": np.where(mixed, np.nan, ratio(moved["bytes"].floats(), own_ns)),
            **_copied(calls),
        }
    )
    order = np.argsort(-np.where(inclusive_params.known, inclusive_params.value, -1), kind="stable")
    return answer.iloc[order].reset_index(drop=True)


def _params(dataset: Dataset, calls: Costs) -> Sum:
    """Bytes of each module's own parameters: from its markers, else from the costs of its calls.

    Parameters belong to modules: where the hierarchy has none, those of its ranges and operators are not known.
    """
    if MODULE not in calls.modules.kind:
        return Sum(np.zeros(len(calls.modules.path), np.int64), np.zeros(len(calls.modules.path), bool))
    of_calls = maxima(calls.owner, calls.column("param_bytes"), len(calls.modules.path))
    params = dataset.table("modules", ["params"]).column("params").to_pylist()
    sizes = [param_bytes([(param["shape"], param["dtype"]) for param in of_module]) for of_module in params]
    of_markers = np.array([-1 if size is None else size for size in sizes], dtype=np.int64)
    value = np.where(of_markers < 0, of_calls, of_markers)
    return Sum(value, value >= 0)


def _copied(calls: Costs) -> dict[str, object]:
    """Bytes and time of the copies of each module itself."""
    table, count = calls.work.table, len(calls.modules.path)
    kinds = labels(table, "kind")
    rows = np.flatnonzero(np.isin(kinds.code, kinds.of("memcpy", "memset")))
    owner, moved = calls.modules.rows(table)[rows], integers(table, "bytes", null=0)[rows]
    unsized = owner[np.asarray(table.column("bytes").is_null())[rows]]
    return {
        "copied_bytes": Sum(sums(owner, moved, count), counts(unsized, count) == 0).column(),
        "copied_ns": sums(owner, integers(table, "dur_ns")[rows], count),
    }
