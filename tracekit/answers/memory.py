"""How far does memory rise in modules, who holds it at its highest, and how much do they read, write and copy?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.spread import ratio
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.aggregates.weighted_kernels import kernels
from tracekit.arrays.codes import joint
from tracekit.arrays.groups import counts, maxima, sums
from tracekit.arrays.types import Ints
from tracekit.costs.calls import Costs, costs
from tracekit.costs.subtree_costs import Sum, totals
from tracekit.dataset.opening import Dataset
from tracekit.flops.peaks import dtypes_stated
from tracekit.flops.tensors import param_bytes
from tracekit.markers.base import MODULE
from tracekit.schema.tables import NEVER, UNKNOWN, Allocations, Calls

NAME = "memory"
ANSWER = ("path", "peak_bytes", "held_bytes", "param_bytes", "input_bytes", "output_bytes", "copied_bytes")
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("dtype",)

_FIGURES = ("input_bytes", "output_bytes", "bytes")
_OF_ALLOCATIONS = ("pid", "device", "start_ns", "end_ns", "bytes", "total_bytes", "module_id", "step_id")
#: What allocators did in a call.
_OF_CALLS = ("peak_bytes", "allocated_bytes", "retained_bytes")


def frame(dataset: Dataset, *, dtype: str | None = None) -> pd.DataFrame:
    """Modules by how far memory rises in one of their calls, then by parameters of their subtree, then by copies.

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

        ``peak_bytes``, ``allocated_bytes`` and ``retained_bytes`` are the most of one of its calls, as in the table
        ``calls``. ``held_bytes`` is what it itself, without modules below, holds at the highest moment of all steps
        (of the recording, if none has memory) on the device that holds most, and ``held_step_id`` is that step. A row
        without a path is all that is held then and was handed out before the recording or outside modules. Null
        where the report does not record what allocators do.

    Raises:
        UsageError: If there is no such dtype.
    """
    modules = hierarchy(dataset)
    gathered = _Gathered(len(modules.path))
    highest: _Moment | None = None
    for calls in costs(dataset, dtypes_stated(dtype), modules):
        gathered.add(calls)
        held = calls.report.whole.rows(Allocations, _OF_ALLOCATIONS)
        place = joint((held.pid, held.device))
        moments = [_highest(held.filter(place == device), modules) for device in np.unique(place).tolist()]
        moments += [highest] if highest else []
        highest = max(moments, key=lambda moment: (moment.step is not None, moment.bytes), default=None)
    params = _params(dataset, modules, gathered.param_bytes)
    subtree_params = params.subtree_sums(modules)
    answer = pd.DataFrame(
        {
            "path": pd.array(modules.path, dtype=object),
            "class_name": pd.array(modules.class_name, dtype=object),
            **gathered.columns(params, subtree_params),
            "held_bytes": pd.array([None] * len(modules.path) if highest is None else highest.held, "Int64"),
            "held_step_id": pd.array([highest.step if highest else None] * len(modules.path), "Int64"),
        }
    )
    subtree_bytes = np.where(subtree_params.known, subtree_params.value, -1)
    order = np.lexsort((-answer["copied_bytes"], -subtree_bytes, -np.maximum(gathered.most["peak_bytes"], -1)))
    answer = answer.iloc[order]
    if highest is not None and dataset.root is None and (outside := highest.bytes - int(highest.held.sum())):
        row = pd.DataFrame({"held_bytes": [outside], "held_step_id": pd.array([highest.step], "Int64")})
        answer = answer.astype(dict.fromkeys(("self_ns", "copied_ns"), "Int64"))
        answer = pd.concat([answer, row.astype(answer.dtypes[row.columns])])
    return answer.reset_index(drop=True)


class _Gathered:
    """Bytes, runs and times of modules, added up over reports; ``param_bytes`` is the most that any call records."""

    def __init__(self, modules: int) -> None:
        self._sums = dict.fromkeys(("runs", *_FIGURES, "copied_bytes"), Sum.zero(modules))
        self._own_ns, self._copied_ns = np.zeros((2, modules), np.int64)
        self._called, self._compiled, self._mixed = np.zeros((3, modules), bool)
        self.param_bytes = np.full(modules, UNKNOWN)
        self.most = dict.fromkeys(_OF_CALLS, self.param_bytes)

    def add(self, calls: Costs) -> None:
        compiled, count = calls.compiled, self._own_ns.size
        found = {name: totals(calls.owner, calls.column(name), calls.runs, count) for name in _FIGURES}
        found["runs"] = totals(calls.owner, np.ones_like(calls.runs), calls.runs, count)
        work = kernels(calls.report, ["module_id", "kind", "dur_ns", "bytes"])
        copies = np.flatnonzero(work.kind.among("memcpy", "memset"))
        owner, moved = calls.modules.rows_of(work.module_id)[copies], work.bytes[copies]
        unsized = counts(owner[moved < 0], count)
        found["copied_bytes"] = Sum(sums(owner, np.maximum(moved, 0), count), unsized, np.zeros(count))
        for name, more in found.items():
            self._sums[name] = self._sums[name].plus(more)
        self._copied_ns += sums(owner, work.dur_ns[copies], count)
        self._own_ns += sums(calls.owner, calls.table.gpu_self_time_ns - compiled.of_call, count)
        self._own_ns += sums(compiled.module, compiled.ns, count)
        self._called |= counts(calls.owner, count) > 0
        self._compiled |= counts(compiled.module, count) > 0
        self._mixed |= calls.work.hidden.mixed(calls.modules, calls.owner)[0]
        of_calls = maxima(calls.owner, calls.column("param_bytes"), count)
        self.param_bytes = np.maximum(self.param_bytes, of_calls)
        table = calls.report.rows(Calls, ["module_id", *_OF_CALLS])
        owner = calls.modules.rows_of(table.module_id)
        for name, most in self.most.items():
            self.most[name] = np.maximum(most, maxima(owner, getattr(table, name), count))

    def columns(self, params: Sum, subtree_params: Sum) -> dict[str, object]:
        # Kernel maps record no tensors, and not how often a module ran.
        only_compiled = self._compiled & ~self._called
        moved = {name: self._sums[name].masked(only_compiled) for name in _FIGURES}
        most = {name: pd.arrays.IntegerArray(value, value == UNKNOWN) for name, value in self.most.items()}
        return {
            **most,
            "runs": self._sums["runs"].masked(only_compiled).column(),
            "self_ns": self._own_ns,
            "param_bytes": params.column(),
            "subtree_param_bytes": subtree_params.column(),
            **{name: total.column() for name, total in moved.items()},
            "gb_per_s": np.where(self._mixed, np.nan, ratio(moved["bytes"].floats(), self._own_ns)),
            "copied_bytes": self._sums["copied_bytes"].column(),
            "copied_ns": self._copied_ns,
        }


def _params(dataset: Dataset, modules: Hierarchy, of_calls: Ints) -> Sum:
    """Bytes of each module's own parameters: from its markers or, without any, from the costs of its calls.

    Parameters belong to modules: where the hierarchy has none, those of its ranges and operators are not known.
    """
    if MODULE not in modules.kind:
        return Sum.of(np.zeros(of_calls.size, np.int64), np.zeros(of_calls.size, bool))
    params = dataset.table("modules", ["params"]).column("params").to_pylist()
    sizes = [param_bytes([(param["shape"], param["dtype"]) for param in of_module]) for of_module in params]
    of_markers = np.array([-1 if size is None else size for size in sizes], dtype=np.int64)
    value = np.where(of_markers < 0, of_calls, of_markers)
    return Sum.of(value, value >= 0)


class _Moment(NamedTuple):
    """A moment at which much is held on a device: how much, what of it each module holds itself, and its step."""

    bytes: int
    held: Ints
    step: int | None


def _highest(table: Allocations, modules: Hierarchy) -> _Moment:
    """The highest moment of a process and device in its steps, or in the recording if no step has memory."""
    step, size = table.step_id, table.bytes
    end, total = table.end_ns, table.total_bytes
    # What was held before is known from the total, or else as far as it is taken back.
    before = total[0] - size[0] if total[0] >= 0 else -size[size < 0].sum() - size[end != NEVER].sum()
    level = np.cumsum(size) + before
    asked = np.flatnonzero(step >= 0) if (step >= 0).any() else np.arange(size.size)
    at = asked[np.argmax(level[asked])]
    held = (np.arange(size.size) <= at) & (size > 0) & (end > table.start_ns[at])
    owner = np.where(held, modules.rows_of(table.module_id), -1)
    return _Moment(int(level[at]), sums(owner, size, len(modules.path)), int(step[at]) if step[at] >= 0 else None)
