"""How many bytes do modules hold, read, write and copy?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.analyses.costs.calls import Costs, costs
from tracekit.analyses.costs.modules import Sum, totals
from tracekit.analyses.spread import ratio
from tracekit.analyses.subtrees import Hierarchy, hierarchy
from tracekit.analyses.weighted_kernels import kernels
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, maxima, sums
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import Dataset
from tracekit.flops.peaks import dtypes_stated
from tracekit.flops.tensors import param_bytes
from tracekit.markers.base import MODULE

NAME = "memory"
ANSWER = ("path", "param_bytes", "input_bytes", "output_bytes", "copied_bytes")
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("dtype",)

_FIGURES = ("input_bytes", "output_bytes", "bytes")


def frame(dataset: Dataset, *, dtype: str | None = None) -> pd.DataFrame:
    """Modules by the size of the parameters of their subtree, the largest first; of equal ones by what they copied.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: The dtype of matrix products where markers record none (vLLM, SGLang), such as ``bfloat16``.

    Returns:
        A row per module: ``path``, ``class_name``, ``runs`` (calls; a call during a graph capture counts once per
        replay), ``self_ns`` (GPU time of its calls' own work), ``param_bytes`` (size of its own parameters, once),
        ``subtree_param_bytes`` (with all modules below; a parameter that modules share counts in each),
        ``input_bytes`` and ``output_bytes`` (of inputs and outputs in all runs), ``bytes`` (the least that its own work
        must move in all runs, as in ``roofline``), ``gb_per_s`` (``bytes`` in its own time), ``copied_bytes`` (what it
        copied and set itself) and ``copied_ns`` (the time of that). Null where a dtype or shape is not recorded.

    Raises:
        UsageError: If there is no such dtype.
    """
    modules = hierarchy(dataset)
    gathered = _Gathered(len(modules.path))
    for calls in costs(dataset, dtypes_stated(dtype), modules):
        gathered.add(calls)
    params = _params(dataset, modules, gathered.param_bytes)
    subtree_params = params.subtree_sums(modules)
    answer = pd.DataFrame(
        {
            "path": pd.array(modules.path, dtype=object),
            "class_name": pd.array(modules.class_name, dtype=object),
            **gathered.columns(params, subtree_params),
        }
    )
    order = np.lexsort((-answer["copied_bytes"], -np.where(subtree_params.known, subtree_params.value, -1)))
    return answer.iloc[order].reset_index(drop=True)


class _Gathered:
    """Bytes, runs and times of modules, added up over reports; ``param_bytes`` is the most that any call records."""

    def __init__(self, modules: int) -> None:
        self._sums = dict.fromkeys(("runs", *_FIGURES, "copied_bytes"), Sum.zero(modules))
        self._own_ns, self._copied_ns = np.zeros((2, modules), np.int64)
        self._called, self._compiled, self._mixed = np.zeros((3, modules), bool)
        self.param_bytes = np.full(modules, np.iinfo(np.int64).min)

    def add(self, calls: Costs) -> None:
        """Adds the calls of a report."""
        compiled, count = calls.compiled, self._own_ns.size
        runs = totals(calls.owner, np.ones_like(calls.runs), calls.runs, count)
        moved = {name: totals(calls.owner, calls.column(name), calls.runs, count) for name in _FIGURES}
        copied, copied_ns = _copied(calls)
        for name, more in {"runs": runs, **moved, "copied_bytes": copied}.items():
            self._sums[name] = self._sums[name].plus(more)
        self._own_ns += sums(calls.owner, integers(calls.table, "gpu_self_time_ns") - compiled.of_call, count)
        self._own_ns += sums(compiled.module, compiled.ns, count)
        self._copied_ns += copied_ns
        self._called |= counts(calls.owner, count) > 0
        self._compiled |= compiled.ran(count)
        self._mixed |= calls.work.hidden.mixed(calls.modules, calls.owner)[0]
        of_calls = maxima(calls.owner, calls.column("param_bytes"), count)
        self.param_bytes = np.maximum(self.param_bytes, of_calls)

    def columns(self, params: Sum, subtree_params: Sum) -> dict[str, object]:
        """The columns after path and class."""
        # Kernel maps record no tensors, and not how often a module ran.
        only_compiled = self._compiled & ~self._called
        moved = {name: self._sums[name].unless(only_compiled) for name in _FIGURES}
        return {
            "runs": self._sums["runs"].unless(only_compiled).column(),
            "self_ns": self._own_ns,
            "param_bytes": params.column(),
            "subtree_param_bytes": subtree_params.column(),
            **{name: total.column() for name, total in moved.items()},
            "gb_per_s": np.where(self._mixed, np.nan, ratio(moved["bytes"].floats(), self._own_ns)),
            "copied_bytes": self._sums["copied_bytes"].column(),
            "copied_ns": self._copied_ns,
        }


def _params(dataset: Dataset, modules: Hierarchy, of_calls: Ints) -> Sum:
    """Bytes of each module's own parameters: from its markers, else from the costs of its calls.

    Parameters belong to modules: where the hierarchy has none, those of its ranges and operators are not known.
    """
    if MODULE not in modules.kind:
        return Sum.of(np.zeros(of_calls.size, np.int64), np.zeros(of_calls.size, bool))
    params = dataset.table("modules", ["params"]).column("params").to_pylist()
    sizes = [param_bytes([(param["shape"], param["dtype"]) for param in of_module]) for of_module in params]
    of_markers = np.array([-1 if size is None else size for size in sizes], dtype=np.int64)
    value = np.where(of_markers < 0, of_calls, of_markers)
    return Sum.of(value, value >= 0)


def _copied(calls: Costs) -> tuple[Sum, Ints]:
    table, count = kernels(calls.report, ["module_id", "kind", "dur_ns", "bytes"]), len(calls.modules.path)
    rows = np.flatnonzero(labels(table, "kind").among("memcpy", "memset"))
    owner, moved = calls.modules.rows(table)[rows], integers(table, "bytes", null=0)[rows]
    unsized = owner[np.asarray(table.column("bytes").is_null())[rows]]
    total = sums(owner, moved, count)
    copied = Sum(total, counts(unsized, count), np.zeros(count))
    return copied, sums(owner, integers(table, "dur_ns")[rows], count)
