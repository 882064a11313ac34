"""Costs of each call without the calls inside: FLOPs and bytes of one run, number of runs, causes of unknowns."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.arrays.codes import codes, joint, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Ints, Rows
from tracekit.costs.compiled import Compiled, compiled_costs
from tracekit.costs.operators import OperatorFlops, operator_flops
from tracekit.costs.own_work import (
    COMPILED,
    CPU_ATTENTION,
    NONE,
    PRODUCT,
    SINGLE,
    TENSOR_FLOAT,
    UNLIKE_LINEAR,
    UNLISTED,
    OwnWork,
    RecordedTotals,
    calls_together,
    own_work,
)
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.flops.base import Call
from tracekit.flops.judging import Judged, Seen, judged
from tracekit.flops.tensors import MULTIPLIED, Tensors
from tracekit.schema.tables import Calls

_TENSORS = ("inputs", "outputs", "kwargs", "input_types", "output_types", "kwarg_types")
_OPERATORS, _UNCLEAR_OPERATORS = 1, 2


class CallKinds:
    """The kinds of calls in all reports so far, in the order in which they were met, and the verdict on each."""

    def __init__(self, dataset: Dataset, dtype: str | None) -> None:
        self.judged: list[Judged] = []
        self._facts, self._dtype, self._phases = _facts(dataset), dtype, Words()
        self._known: dict[Any, Judged] = {}
        self._rows: pa.Table | None = None
        self._groups = np.empty(0, np.int64)
        self._latest: tuple[pa.Table, Rows] | None = None

    def numbered(self, calls: Calls, parent: Rows, owner: Rows, work: OwnWork, operators: OperatorFlops | None) -> Rows:
        """The kind of each call of a report, given the calls and modules around it."""
        phase = self._phases.codes(calls.phase)
        evidence = _Evidence(owner + 1, phase + 1, *_evidence(parent, work, operators))
        columns = [*evidence, *(codes(calls.table.column(name).combine_chunks()) for name in _TENSORS)]
        kind, first = grouped([joint(columns)])
        evidence = _Evidence(*(column[first] for column in evidence))
        rows = pa.table([*map(pa.array, evidence)], names=[*_Evidence._fields])
        for name in _TENSORS:
            rows = rows.append_column(name, calls.table.column(name).take(pa.array(first)))
        number, new = self._placed(rows)
        self._judge(rows.take(pa.array(new)), work, first[new])
        return number[kind]

    def groups(self) -> Rows:
        """For each kind the number of its module, phase and shapes of inputs, in the order in which they were met."""
        if self._rows is not None and self._groups.size < self._rows.num_rows:
            shapes = (codes(self._rows.column(name).combine_chunks()) for name in ("inputs", "kwargs"))
            self._groups = joint((integers(self._rows, "owner"), integers(self._rows, "phase"), *shapes))
        return self._groups

    def called(self, kinds: Rows) -> tuple[Rows, list[str | None], pa.Table]:
        """Modules, phases and shapes of inputs of some kinds."""
        assert self._rows is not None
        rows = self._rows.take(pa.array(kinds))
        phases = self._phases.named(integers(rows, "phase") - 1)
        return integers(rows, "owner") - 1, phases, rows.select(["inputs", "kwargs"])

    def _placed(self, rows: pa.Table) -> tuple[Rows, Rows]:
        if self._latest is not None and rows.equals(self._latest[0]):
            return self._latest[1], np.empty(0, np.int64)
        known = 0 if self._rows is None else self._rows.num_rows
        everything = rows if self._rows is None else pa.concat_tables([self._rows, rows]).unify_dictionaries()
        everything = everything.combine_chunks()
        code = joint(codes(column.combine_chunks()) for column in everything.columns)
        new = np.unique(code, return_index=True)[1]
        new = new[new >= known]
        kept = np.concatenate((np.arange(known), new))
        self._rows = everything.take(pa.array(kept)).combine_chunks()
        self._latest = rows, code[known:]
        return code[known:], new - known

    def _judge(self, rows: pa.Table, work: OwnWork, first: Rows) -> None:
        evidence = _Evidence(*(integers(rows, name).tolist() for name in _Evidence._fields))
        backward = self._phases.named(integers(rows, "phase") - 1)
        seen = _seen(evidence, [phase == "backward" for phase in backward], work, first)
        shapes = rows.select(_TENSORS).to_pylist()
        for owner, tensors, one in zip(evidence.owner, shapes, seen, strict=True):
            fact = self._facts.code[owner - 1]
            key = (fact, json.dumps(tensors, default=str), one)
            if key not in self._known:
                self._known[key] = judged(*_call(self._facts.distinct[fact], tensors), one, self._dtype)
            self.judged.append(self._known[key])


class _Evidence(NamedTuple):
    """What distinguishes calls of one shape, as columns of numbers; of module and phase one more than their number."""

    owner: Any
    phase: Any
    bits: Any
    has_calls: Any
    by_operators: Any
    never_ran: Any
    unseen: Any
    multiplied: Any


def _evidence(parent: Rows, work: OwnWork, operators: OperatorFlops | None) -> Iterable[Rows]:
    has_calls = np.zeros(parent.size, dtype=np.int64)
    has_calls[parent[parent >= 0]] = 1
    by_operators = np.zeros(parent.size, dtype=np.int64)
    if operators is not None:
        by_operators = np.where(operators.flops >= 0, _OPERATORS, operators.any * _UNCLEAR_OPERATORS)
    never_ran, unseen = (work.runs == 0).astype(np.int64), work.hidden.incomplete.astype(np.int64)
    multiplied = operators.dtype + 1 if operators is not None else np.zeros_like(has_calls)
    return work.bits, has_calls, by_operators, never_ran, unseen, multiplied


def _seen(evidence: _Evidence, backward: list[bool], work: OwnWork, first: Rows) -> list[Seen]:
    work_bits, unseen = evidence.bits, evidence.unseen
    example, loses_work = work.example[first], work.together.loses_work
    return [
        Seen(
            recorded=work.together.recorded,
            backward=backward[at],
            unseen=bool(unseen[at]),
            idle=bool(work_bits[at] & NONE) and not unseen[at],
            harmless=not work_bits[at] & (NONE | UNLISTED) and not unseen[at],
            product=bool(work_bits[at] & PRODUCT),
            cpu_attention=bool(work_bits[at] & CPU_ATTENTION),
            tensor_float=bool(work_bits[at] & TENSOR_FLOAT),
            single=bool(work_bits[at] & SINGLE),
            unlike_linear=bool(work_bits[at] & UNLIKE_LINEAR),
            lost=bool(loses_work[evidence.owner[at] - 1]),
            around=bool(evidence.has_calls[at]),
            never=bool(evidence.never_ran[at]),
            by_operators=evidence.by_operators[at] == _OPERATORS,
            operators_unclear=evidence.by_operators[at] == _UNCLEAR_OPERATORS,
            example=None if example[at] < 0 else work.names[example[at]],
            multiplied=(None, *MULTIPLIED)[evidence.multiplied[at]],
            compiled=bool(work_bits[at] & COMPILED),
        )
        for at in range(first.size)
    ]


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
    return types if types is not None and len(types) == len(shapes) else [""] * len(shapes)


_COLUMNS = (*("call_id", "parent_call_id", "module_id", "phase", "gpu_time_ns", "gpu_self_time_ns"),)


class Costs(NamedTuple):
    """The calls of a report, or of a subtree of one; rows are those of its table ``calls``.

    Attributes:
        parent: The call around each, or -1.
        runs: How often it ran, -1 where unknown.
        flops: FLOPs of one run, without the calls inside; -1 where unknown.
        kind: The kind of each call, among those of this report and of those before it.
    """

    report: Dataset
    table: Calls
    parent: Rows
    modules: Hierarchy
    owner: Rows
    runs: Ints
    flops: Ints
    kinds: CallKinds
    kind: Rows
    work: OwnWork
    compiled: Compiled

    def column(self, name: str) -> Ints:
        """A figure of :class:`~tracekit.flops.judging.Judged` for each call, -1 where unknown."""
        figures = [getattr(verdict, name) for verdict in self.kinds.judged]
        return np.asarray(np.array([-1 if figure is None else figure for figure in figures], np.int64)[self.kind])

    def coded_texts(self, name: str) -> tuple[Rows, list[str | None]]:
        """A word of :class:`~tracekit.flops.judging.Judged` for each call, as a place in a list of words."""
        words = [getattr(verdict, name) for verdict in self.kinds.judged]
        distinct = list(dict.fromkeys(words))
        place = {word: at for at, word in enumerate(distinct)}
        return np.array([place[word] for word in words], dtype=np.int64)[self.kind], distinct


def costs(dataset: Dataset, dtype: str | None = None, modules: Hierarchy | None = None) -> Iterator[Costs]:
    """What the calls of a dataset cost, report by report; ``dtype`` is that of layers whose markers record none.

    What calls of a module show of others holds in all reports: where there are several, that is looked at first.
    """
    modules, kinds, parts = modules or hierarchy(dataset), CallKinds(dataset, dtype), [*dataset.by_report()]
    known = calls_together(parts, modules) if len(parts) > 1 else None
    for part in parts:
        yield _of_report(part, modules, kinds, known)


def _of_report(dataset: Dataset, modules: Hierarchy, kinds: CallKinds, known: RecordedTotals | None) -> Costs:
    calls = dataset.rows(Calls, [*_COLUMNS, *_TENSORS, *([REPORT] if dataset.reports else [])])
    work = own_work(dataset, modules, calls, known)
    owner, parent = modules.rows_of(calls.module_id), positions(calls.parent_call_id, calls.call_id)
    operators = operator_flops(dataset, calls, owner, work)
    if operators is not None:
        # Those inside a compiled graph belong to the modules that its kernels serve.
        held = work.bits & COMPILED > 0
        operators = operators._replace(flops=np.where(held, -1, operators.flops))
    kind = kinds.numbered(calls, parent, owner, work, operators)
    flops = np.array([-1 if verdict.flops is None else verdict.flops for verdict in kinds.judged], np.int64)[kind]
    if operators is not None:
        flops = np.where(operators.flops >= 0, operators.flops, flops)
    compiled = compiled_costs(dataset, calls, modules)
    return Costs(
        dataset,
        Calls(calls.table.drop_columns(_TENSORS)),
        parent,
        modules,
        owner,
        work.runs,
        flops,
        kinds,
        kind,
        work,
        compiled,
    )
