"""What each call costs by itself: FLOPs and bytes of one run, how often it ran, and why that is unknown.

Calls that agree in everything that matters form one kind: the same module, phase and shapes, and the same evidence in
their kernels and operators. Each kind is judged once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.analyses.costs import own_work as bits
from tracekit.analyses.costs.compiled import compiled_costs
from tracekit.analyses.costs.operators import operator_flops
from tracekit.analyses.costs.own_work import own_work
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import positions
from tracekit.dataset.opening import REPORT
from tracekit.flops.base import Call
from tracekit.flops.dtypes import MULTIPLIED
from tracekit.flops.judging import Seen, judged
from tracekit.flops.tensors import Tensors

if TYPE_CHECKING:
    from tracekit.analyses.costs.compiled import Compiled
    from tracekit.analyses.costs.operators import OperatorFlops
    from tracekit.analyses.costs.own_work import OwnWork
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset
    from tracekit.flops.judging import Judged

_TENSORS = ("inputs", "outputs", "kwargs", "input_types", "output_types", "kwarg_types")
_COLUMNS = (
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
        table: Columns of the table ``calls``.
        modules: The hierarchy.
        owner: The module of each call.
        runs: How often it ran, -1 where unknown.
        flops: FLOPs of one run by itself, without the calls inside; -1 where unknown.
        judged: The verdict on each kind of call.
        kind: The kind of each call: calls of one kind have the same module, phase, shapes and evidence.
        first: The first call of each kind.
        work: The work of the calls.
        compiled: The work of compiled graphs, which is that of modules inside them.
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
    compiled: Compiled

    def column(self, name: str) -> Ints:
        """A figure of :class:`~tracekit.flops.judging.Judged` for each call, -1 where unknown."""
        figures = [getattr(verdict, name) for verdict in self.judged]
        of_calls: Ints = np.array([-1 if figure is None else figure for figure in figures], np.int64)[self.kind]
        return of_calls

    def words(self, name: str) -> tuple[Rows, list[str | None]]:
        """A word of :class:`~tracekit.flops.judging.Judged` for each call, as a place in a list of words."""
        words = [getattr(verdict, name) for verdict in self.judged]
        distinct = list(dict.fromkeys(words))
        place = {word: at for at, word in enumerate(distinct)}
        return np.array([place[word] for word in words], dtype=np.int64)[self.kind], distinct


def costs(dataset: Dataset, dtype: str | None = None) -> Costs:
    """What the calls of a dataset cost.

    Args:
        dataset: The dataset, or a subtree of one.
        dtype: The dtype of layers whose markers record none.
    """
    in_schema = set(dataset.schema("calls").names)
    tensors = [name for name in _TENSORS if name in in_schema]
    calls = dataset.table("calls", [*_COLUMNS, *tensors, *([REPORT] if dataset.reports else [])])
    modules, work = hierarchy(dataset), own_work(dataset, calls)
    owner = modules.rows(calls)
    operators = operator_flops(dataset, calls, work)
    if operators is not None:
        # Those inside a compiled graph are of the modules that its kernels serve.
        held = work.bits & bits.COMPILED > 0
        operators = operators._replace(flops=np.where(held, -1, operators.flops))
    evidence = _evidence(calls, work, operators)
    kind, first = _kinds(calls, owner, evidence, tensors)
    loses_work = _loses_work(dataset, modules, work)[owner[first]]
    seen = _seen(calls, work, [column[first] for column in evidence], loses_work, first)
    shapes = calls.select(tensors).take(pa.array(first)).to_pylist()
    verdicts = _judged(_facts(dataset), owner[first], shapes, seen, dtype)
    flops = np.array([-1 if verdict.flops is None else verdict.flops for verdict in verdicts], np.int64)[kind]
    if operators is not None:
        flops = np.where(operators.flops >= 0, operators.flops, flops)
    return Costs(
        calls, modules, owner, work.runs, flops, verdicts, kind, first, work, compiled_costs(dataset, calls, modules)
    )


def _judged(
    facts: _Facts, module: Rows, shapes: list[dict[str, Any]], seen: list[Seen], dtype: str | None
) -> list[Judged]:
    """The verdict on each kind of call; kinds of modules with equal facts are judged once."""
    known: dict[Any, Judged] = {}
    verdicts = []
    for row, tensors, evidence in zip(module.tolist(), shapes, seen, strict=True):
        key = (facts.code[row], json.dumps(tensors, default=str), evidence)
        if key not in known:
            known[key] = judged(*_call(facts.distinct[facts.code[row]], tensors), evidence, dtype)
        verdicts.append(known[key])
    return verdicts


def _evidence(calls: pa.Table, work: OwnWork, operators: OperatorFlops | None) -> list[Rows]:
    """What tells calls of one module and shape apart, as columns of :func:`_seen`."""
    phases = labels(calls, "phase")
    parent = positions(integers(calls, "parent_call_id"), integers(calls, "call_id"))
    has_calls = np.zeros(calls.num_rows, dtype=np.int64)
    has_calls[parent[parent >= 0]] = 1
    by_operators = np.zeros(calls.num_rows, dtype=np.int64)
    if operators is not None:
        by_operators = np.where(operators.flops >= 0, _OPERATORS, operators.any * _UNCLEAR_OPERATORS)
    never_ran, unseen = (work.runs == 0).astype(np.int64), work.hidden.unseen.astype(np.int64)
    multiplied = operators.dtype + 1 if operators is not None else np.zeros_like(has_calls)
    return [phases.code + 1, work.bits, has_calls, by_operators, never_ran, unseen, multiplied]


def _kinds(calls: pa.Table, owner: Rows, evidence: list[Rows], tensors: list[str]) -> tuple[Rows, Rows]:
    """The kind of each call, and the first call of each kind."""
    columns = [codes(calls.column(name).combine_chunks()) for name in tensors]
    code = joint((owner, *evidence, *columns))
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    return kind, first


def _seen(calls: pa.Table, work: OwnWork, evidence: list[Rows], loses_work: Rows, first: Rows) -> list[Seen]:
    """The evidence on the first call of each kind."""
    phase, work_bits, has_calls, by_operators, never_ran, unseen, multiplied = (column.tolist() for column in evidence)
    example = work.example[first]
    names, phases = labels(work.table, "name"), labels(calls, "phase")
    backward = {code + 1 for code in phases.of("backward").tolist()}
    return [
        Seen(
            recorded=work.recorded,
            backward=phase[at] in backward,
            unseen=bool(unseen[at]),
            idle=bool(work_bits[at] & bits.NONE) and not unseen[at],
            harmless=not work_bits[at] & (bits.NONE | bits.UNLISTED) and not unseen[at],
            product=bool(work_bits[at] & bits.PRODUCT),
            cpu_attention=bool(work_bits[at] & bits.CPU_ATTENTION),
            tensor_float=bool(work_bits[at] & bits.TENSOR_FLOAT),
            single=bool(work_bits[at] & bits.SINGLE),
            unlike_linear=bool(work_bits[at] & bits.UNLIKE_LINEAR),
            lost=bool(loses_work[at]),
            around=bool(has_calls[at]),
            never=bool(never_ran[at]),
            by_operators=by_operators[at] == _OPERATORS,
            operators_unclear=by_operators[at] == _UNCLEAR_OPERATORS,
            example=None if example[at] < 0 else [*names.words, None][names.code[example[at]]],
            multiplied=(None, *MULTIPLIED)[multiplied[at]],
            compiled=bool(work_bits[at] & bits.COMPILED),
        )
        for at in range(first.size)
    ]


def _loses_work(dataset: Dataset, modules: Hierarchy, work: OwnWork) -> Rows:
    """For each module 1 if it launched work that no call of it is known for, else 0; and a last 0 for no module."""
    loses = np.zeros(len(modules.path) + 1, dtype=np.int64)
    loses[modules.rows(work.shared)] = 1
    ids = np.unique(integers(work.unattributed, "range_id"))
    if ids[ids >= 0].size:
        ranges = dataset.table("ranges", ["range_id", "module_id"])
        rows = np.flatnonzero(np.isin(integers(ranges, "range_id"), ids))
        loses[modules.rows(ranges.take(pa.array(rows)))] = 1
        loses[-1] = 0
    return loses


class _Facts(NamedTuple):
    """The distinct facts that markers state about modules, and the place of each module's among them."""

    distinct: list[dict[str, Any]]
    code: list[int]


def _facts(dataset: Dataset) -> _Facts:
    place: dict[str, int] = {}
    distinct: list[dict[str, Any]] = []
    code = []
    for row in dataset.table("modules", ["class_name", "params", "static_params"]).to_pylist():
        key = json.dumps(row)
        if key not in place:
            place[key] = len(distinct)
            distinct.append(row)
        code.append(place[key])
    return _Facts(distinct, code)


def _call(module: dict[str, Any], tensors: dict[str, Any]) -> tuple[Call, Tensors]:
    """A call as formulas see it, and the dtypes of its tensors."""
    settings = json.loads(module["static_params"] or "null")
    kwargs, types = dict(tensors["kwargs"] or ()), dict(tensors.get("kwarg_types") or ())
    call = Call(
        class_name=module["class_name"],
        params={param["name"]: param["shape"] for param in module["params"]},
        settings=settings if isinstance(settings, dict) else {},
        inputs=tensors["inputs"],
        outputs=tensors["outputs"],
        kwargs=kwargs,
    )
    return call, Tensors(
        params=[param["dtype"] for param in module["params"]],
        inputs=tensors.get("input_types"),
        outputs=tensors.get("output_types"),
        kwargs=[dtype for name in kwargs for dtype in _as_many(types.get(name), kwargs[name])],
    )


def _as_many(types: list[str] | None, shapes: list[object]) -> list[str]:
    """The dtypes of some tensors; unknown if their number differs."""
    return types if types is not None and len(types) == len(shapes) else [""] * len(shapes)
