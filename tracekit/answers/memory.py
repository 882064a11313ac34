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
from tracekit.costs.subtree_costs import Own, Sum, totals
from tracekit.dataset.opening import Dataset
from tracekit.flops.peaks import dtypes_stated
from tracekit.flops.tensors import param_bytes
from tracekit.markers.base import MODULE
from tracekit.schema.tables import NEVER, UNKNOWN, Allocations, Calls

NAME = "memory"
ANSWER = ("path", "peak_bytes", "held_bytes", "param_bytes", "input_bytes", "output_bytes", "copied_bytes")
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("dtype",)

_PARAMS, _TENSORS = "param_bytes", ("input_bytes", "output_bytes")
_OF_ALLOCATIONS = ("pid", "device", "start_ns", "end_ns", "bytes", "total_bytes", "module_id", "step_id")
#: What allocators did in a call.
_OF_CALLS = ("peak_bytes", "allocated_bytes", "retained_bytes")


def frame(dataset: Dataset, *, dtype: str | None = None) -> pd.DataFrame:
    """Modules by how far memory rises in one of their calls, then by parameters of their subtree, then by copies.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: The dtype of matrix products where markers record none (vLLM, SGLang), such as ``bfloat16``.

    Returns:
        A row per module: ``path``, ``class_name``, ``param_bytes`` (size of its own parameters, once),
        ``subtree_param_bytes`` (with all modules below; a parameter that modules share counts in each),
        ``input_bytes`` and ``output_bytes`` (of inputs and outputs in all runs), ``runs``, ``self_ns``, ``bytes`` and
        ``gb_per_s`` (as in :func:`tracekit.answers.roofline.frame`), ``copied_bytes`` (what it
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
    own, gathered = Own(modules), _Gathered(len(modules.path))
    highest: _Moment | None = None
    for calls in costs(dataset, dtypes_stated(dtype), modules):
        own.add(calls)
        gathered.add(calls)
        held = calls.report.whole.rows(Allocations, _OF_ALLOCATIONS)
        place = joint((held.pid, held.device))
        moments = [_highest(held.filter(place == device), modules) for device in np.unique(place).tolist()]
        moments += [highest] if highest else []
        highest = max(moments, key=lambda moment: (moment.step is not None, moment.bytes), default=None)
    params = _params(dataset, modules, gathered.most[_PARAMS])
    subtree_params = params.subtree_sums(modules)
    answer = pd.DataFrame(
        {
            "path": pd.array(modules.path, dtype=object),
            "class_name": pd.array(modules.class_name, dtype=object),
            **{name: pd.arrays.IntegerArray(gathered.most[name], gathered.most[name] == UNKNOWN) for name in _OF_CALLS},
            "runs": own.runs.column(),
            "self_ns": own.ns,
            "param_bytes": params.column(),
            "subtree_param_bytes": subtree_params.column(),
            **{name: total.masked(own.inside_compiled).column() for name, total in gathered.tensors.items()},
            "bytes": own.bytes.column(),
            "gb_per_s": ratio(own.bytes.floats(), np.where(own.mixed, np.nan, own.ns)),
            "copied_bytes": gathered.copied_bytes.column(),
            "copied_ns": gathered.copied_ns,
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
    """What modules read, wrote and copied, added up over reports, and the most of one of their calls."""

    def __init__(self, modules: int) -> None:
        self.tensors = dict.fromkeys(_TENSORS, Sum.zero(modules))
        self.copied_bytes, self.copied_ns = Sum.zero(modules), np.zeros(modules, np.int64)
        self.most = dict.fromkeys((*_OF_CALLS, _PARAMS), np.full(modules, UNKNOWN))

    def add(self, calls: Costs) -> None:
        count = self.copied_ns.size
        for name, total in self.tensors.items():
            self.tensors[name] = total.plus(totals(calls.owner, calls.column(name), calls.runs, count))
        work = kernels(calls.report, ["module_id", "kind", "dur_ns", "bytes"])
        copies = work.filter(work.kind.among("memcpy", "memset"))
        owner, moved = calls.modules.rows_of(copies.module_id), copies.bytes
        copied = Sum(sums(owner, np.maximum(moved, 0), count), counts(owner[moved < 0], count), np.zeros(count))
        self.copied_bytes = self.copied_bytes.plus(copied)
        self.copied_ns += sums(owner, copies.dur_ns, count)
        table = calls.report.rows(Calls, _OF_CALLS)
        for name, most in self.most.items():
            figure = calls.column(name) if name == _PARAMS else getattr(table, name)
            self.most[name] = np.maximum(most, maxima(calls.owner, figure, count))


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
