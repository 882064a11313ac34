"""What each call itself costs at least: FLOPs and bytes of one run, how often it ran, and why that is not known.

Every distinct combination of what markers tell of a call, and of what its work tells, is looked at once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.analyses.costs import own_work as its
from tracekit.analyses.costs.operators import told_by_operators
from tracekit.analyses.costs.own_work import own_work
from tracekit.analyses.devices import places
from tracekit.analyses.subtrees import hierarchy, integers
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.labels import labels
from tracekit.dataset.opening import REPORT
from tracekit.flops.base import Call
from tracekit.flops.judging import Seen, judged
from tracekit.flops.tensors import Tensors

if TYPE_CHECKING:
    from tracekit.analyses.costs.operators import Told
    from tracekit.analyses.costs.own_work import OwnWork
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset
    from tracekit.flops.judging import Judged

_TOLD = ("inputs", "outputs", "kwargs", "input_types", "output_types", "kwarg_types")
_WHERE = (
    "call_id",
    "parent_call_id",
    "module_id",
    "phase",
    "pid",
    "tid",
    "start_ns",
    "end_ns",
    "gpu_time_ns",
    "gpu_self_time_ns",
)
_OPERATORS, _UNCLEAR_OPERATORS = 1, 2


class Costs(NamedTuple):
    """The calls of a dataset, or of a subtree of one; rows are those of its table ``calls``.

    Attributes:
        table: What the table says of them.
        modules: The hierarchy.
        owner: The module of each call.
        runs: How often it ran; -1 where that is not known.
        flops: FLOPs of one run itself, without the calls in it; -1 where they are not known.
        judged: What was found of each kind of call.
        kind: The kind of each call: calls of one kind are of one module, phase and shapes.
        first: The first call of each kind.
        work: The work of the calls.
    """

    table: pa.Table
    modules: Hierarchy
    owner: Rows
    runs: Ints
    flops: Ints
    judged: list[Judged]
    kind: Rows
    first: Rows
    work: OwnWork

    def column(self, name: str) -> Ints:
        """A figure of :class:`~tracekit.flops.judging.Judged` for each call, -1 where it is not known."""
        figures = [getattr(one, name) for one in self.judged]
        found: Ints = np.array([-1 if one is None else one for one in figures], np.int64)[self.kind]
        return found

    def words(self, name: str) -> tuple[Rows, list[str | None]]:
        """A word of what was found for each call, as a place in a list."""
        said = [getattr(one, name) for one in self.judged]
        distinct = list(dict.fromkeys(said))
        place = {word: at for at, word in enumerate(distinct)}
        return np.array([place[word] for word in said], dtype=np.int64)[self.kind], distinct


def costs(dataset: Dataset, dtype: str | None = None) -> Costs:
    """What the calls of a dataset cost.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: That of all layers whose markers tell none.
    """
    named = [REPORT] if dataset.reports else []
    there = set(dataset.schema("calls").names)
    told = [name for name in _TOLD if name in there]
    calls = dataset.table("calls", [*_WHERE, *told, *named])
    modules, work = hierarchy(dataset), own_work(dataset, calls)
    owner = modules.rows(calls)
    operators = told_by_operators(dataset, calls, work)
    lost = _lost(dataset, modules, work)
    evidence = _evidence(calls, work, operators)
    kind, first = _kinds(calls, owner, evidence, told)
    seen = _seen(calls, work, [one[first] for one in evidence], lost[owner[first]], first)
    about = _modules(dataset)
    shown = calls.select(told).take(pa.array(first)).to_pylist()
    known: dict[Any, Judged] = {}
    found = []
    for row, told_of_it, facts in zip(owner[first].tolist(), shown, seen, strict=True):
        key = (about.code[row], json.dumps(told_of_it, default=str), facts)
        if key not in known:
            known[key] = judged(*_call(about.said[about.code[row]], told_of_it), facts, dtype)
        found.append(known[key])
    flops = np.array([-1 if one.flops is None else one.flops for one in found], np.int64)[kind]
    if operators is not None:
        flops = np.where(operators.flops >= 0, operators.flops, flops)
    return Costs(calls, modules, owner, work.runs, flops, found, kind, first, work)


def _evidence(calls: pa.Table, work: OwnWork, operators: Told | None) -> list[Rows]:
    """What tells calls of one module and shape apart."""
    phases = labels(calls, "phase")
    parent = places(calls, "parent_call_id", integers(calls, "call_id"))
    around = np.zeros(calls.num_rows, dtype=np.int64)
    around[parent[parent >= 0]] = 1
    said = np.zeros(calls.num_rows, dtype=np.int64)
    if operators is not None:
        said = np.where(operators.flops >= 0, _OPERATORS, operators.any * _UNCLEAR_OPERATORS)
    return [phases.code + 1, work.bits, around, said, (work.runs == 0).astype(np.int64)]


def _kinds(calls: pa.Table, owner: Rows, evidence: list[Rows], told: list[str]) -> tuple[Rows, Rows]:
    """A number for each call, the same for those that are alike in all; and the first call of each."""
    columns = [codes(calls.column(name).combine_chunks()) for name in told]
    code = joint((owner, *evidence, *columns))
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    return kind, first


def _seen(calls: pa.Table, work: OwnWork, evidence: list[Rows], lost: Rows, first: Rows) -> list[Seen]:
    """What is seen of the first call of each kind."""
    phase, bits, around, said, never = (one.tolist() for one in evidence)
    example = work.example[first]
    names = labels(work.table, "name")
    phases = labels(calls, "phase")
    backward = {code + 1 for code in phases.of("backward").tolist()}
    return [
        Seen(
            recorded=work.recorded,
            backward=phase[at] in backward,
            idle=bool(bits[at] & its.NONE),
            harmless=not bits[at] & (its.NONE | its.UNLISTED),
            product=bool(bits[at] & its.PRODUCT),
            cpu_attention=bool(bits[at] & its.CPU_ATTENTION),
            tensor_float=bool(bits[at] & its.TENSOR_FLOAT),
            single=bool(bits[at] & its.SINGLE),
            unlike_linear=bool(bits[at] & its.UNLIKE_LINEAR),
            lost=bool(lost[at]),
            around=bool(around[at]),
            never=bool(never[at]),
            by_operators=said[at] == _OPERATORS,
            operators_unclear=said[at] == _UNCLEAR_OPERATORS,
            example=None if example[at] < 0 else [*names.words, None][names.code[example[at]]],
        )
        for at in range(first.size)
    ]


def _lost(dataset: Dataset, modules: Hierarchy, work: OwnWork) -> Rows:
    """For each module whether it launched work that is nobody's."""
    found = np.zeros(len(modules.path) + 1, dtype=np.int64)
    ids = np.unique(integers(work.nobodys, "range_id", missing=-1))
    if ids[ids >= 0].size:
        ranges = dataset.table("ranges", ["range_id", "module_id"])
        rows = np.flatnonzero(np.isin(integers(ranges, "range_id"), ids))
        found[modules.rows(ranges.take(pa.array(rows)))] = 1
        found[-1] = 0
    return found


class _Modules(NamedTuple):
    """What markers say of modules, each distinct thing once, and which of them is said of each module."""

    said: list[dict[str, Any]]
    code: list[int]


def _modules(dataset: Dataset) -> _Modules:
    table = dataset.table("modules", ["class_name", "params", "static_params"])
    place: dict[str, int] = {}
    said: list[dict[str, Any]] = []
    code = []
    for row in table.to_pylist():
        key = json.dumps(row)
        if key not in place:
            place[key] = len(said)
            said.append(row)
        code.append(place[key])
    return _Modules(said, code)


def _call(module: dict[str, Any], told: dict[str, Any]) -> tuple[Call, Tensors]:
    """A call as formulas see it, and the dtypes of its tensors."""
    settings = json.loads(module["static_params"] or "null")
    kwargs, types = dict(told["kwargs"] or ()), dict(told.get("kwarg_types") or ())
    call = Call(
        class_name=module["class_name"],
        params={one["name"]: one["shape"] for one in module["params"]},
        settings=settings if isinstance(settings, dict) else {},
        inputs=told["inputs"],
        outputs=told["outputs"],
        kwargs=kwargs,
    )
    return call, Tensors(
        params=[one["dtype"] for one in module["params"]],
        inputs=told.get("input_types"),
        outputs=told.get("output_types"),
        kwargs=[one for name in kwargs for one in _as_many(types.get(name), kwargs[name])],
    )


def _as_many(types: list[str] | None, shapes: list[object]) -> list[str]:
    """The types of some tensors, if there are as many."""
    return types if types is not None and len(types) == len(shapes) else [""] * len(shapes)
