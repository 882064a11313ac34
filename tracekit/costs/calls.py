"""Costs of each call without the calls inside: FLOPs and bytes of one run, number of runs, causes of unknowns.

Modules inside compiled graphs have no calls of their own: kernel maps attribute the time and the FLOPs.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.aggregates.weighted_kernels import kernels, weighted_work
from tracekit.arrays.codes import codes, joint, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, sums
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.costs.operators import OperatorFlops, operator_flops
from tracekit.costs.own_work import OwnWork, RecordedTotals, calls_together, is_compiled, own_work
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.flops.judging import Judged, Seen, judged
from tracekit.flops.kernels import Work
from tracekit.flops.layers import Call
from tracekit.flops.tensors import MULTIPLIED, Tensors
from tracekit.markers.base import MOST_FLOPS
from tracekit.schema.tables import Calls, KernelModules, Kernels

_COLUMNS = ["call_id", "parent_call_id", "module_id", "phase", "gpu_time_ns", "gpu_self_time_ns"]
_WORK = ["kernel_id", "module_id", "method", "call_id", "kind", "name", "dur_ns", "device", "collective"]
_TENSORS = ("inputs", "outputs", "kwargs", "input_types", "output_types", "kwarg_types")


class CallKinds:
    """The kinds of calls in all reports so far, in the order in which they were met, and the verdict on each."""

    def __init__(self, dataset: Dataset, dtype: str | None) -> None:
        self.judged: list[Judged] = []
        self._dtype, self._phases = dtype, Words()
        # What markers state about each module.
        facts = dataset.table("modules", ["class_name", "params", "static_params"]).to_pylist()
        self._facts = [sys.intern(json.dumps(row)) for row in facts]  # modules of experts are many and alike
        self._known: dict[Any, Judged] = {}
        self._rows: pa.Table | None = None
        self._groups = np.empty(0, np.int64)
        self._latest: tuple[pa.Table, Rows] | None = None

    def numbered(self, calls: Calls, parent: Rows, owner: Rows, work: OwnWork, operators: OperatorFlops | None) -> Rows:
        """The kind of each call of a report, given the calls and modules around it."""
        # Of what may be unknown one more than its number.
        numbers = {
            "owner": owner + 1,
            "phase": self._phases.codes(calls.phase) + 1,
            "work": _bits(calls, parent, owner, work, operators),
            "multiplied": np.zeros_like(parent) if operators is None else operators.dtype + 1,
        }
        tensors = {name: calls.table.column(name).combine_chunks() for name in _TENSORS}
        kind, first = grouped([joint([*numbers.values(), *map(codes, tensors.values())])])
        rows = pa.table(numbers | tensors).take(pa.array(first))
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
        """Judges new kinds of calls, given the first call of each."""
        owners, bits, multiplied = (integers(rows, name).tolist() for name in ("owner", "work", "multiplied"))
        shapes, examples = rows.select(_TENSORS).to_pylist(), work.example[first].tolist()
        for owner, flags, dtype, tensors, example in zip(owners, bits, multiplied, shapes, examples, strict=True):
            seen = Seen(Work(flags), None if example < 0 else work.names[example], (None, *MULTIPLIED)[dtype])
            key = (fact := self._facts[owner - 1], json.dumps(tensors, default=str), seen)
            if key not in self._known:
                self._known[key] = judged(*_call(json.loads(fact), tensors), seen, self._dtype)
            self.judged.append(self._known[key])


def _bits(calls: Calls, parent: Rows, owner: Rows, work: OwnWork, operators: OperatorFlops | None) -> Ints:
    """What is known of the work of each call, as bits of :class:`~tracekit.flops.kernels.Work`."""
    bits = work.bits.copy()
    bits[parent[parent >= 0]] |= Work.AROUND
    holds = {
        Work.RECORDED: work.together.recorded,
        Work.BACKWARD: calls.phase.among("backward"),
        Work.UNSEEN: work.hidden.incomplete,
        Work.LOST: work.together.loses_work[owner],
        Work.NEVER: work.runs == 0,
    }
    if operators is not None:
        holds[Work.BY_OPERATORS] = operators.flops >= 0
        holds[Work.OPERATORS_UNCLEAR] = operators.any & (operators.flops < 0)
    for flag, where in holds.items():
        bits |= np.where(where, flag, 0)
    return bits


def _call(module: dict[str, Any], tensors: dict[str, Any]) -> tuple[Call, Tensors]:
    settings = json.loads(module["static_params"] or "null")
    kwargs, types = dict(tensors["kwargs"] or ()), dict(tensors["kwarg_types"] or ())
    dtypes: list[str] = []
    for name, shapes in kwargs.items():
        named = types.get(name) or ()
        dtypes += named if len(named) == len(shapes) else [""] * len(shapes)
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
        inputs=tensors["input_types"],
        outputs=tensors["output_types"],
        kwargs=dtypes,
    )


class Compiled(NamedTuple):
    """Work of compiled graphs: a row for every kernel and module that it serves.

    ``dtype`` is a place in ``MULTIPLIED``, ``unknown`` one in ``words`` (why FLOPs are not known); -1 is unknown.
    For every call: the time and FLOPs of such work in it, and whether it holds any.
    """

    work: Kernels
    module: Rows
    ns: Ints
    flops: Ints
    dtype: Rows
    unknown: Rows
    words: list[str]
    of_call: Ints
    flops_of_call: Ints
    held: Flags


def compiled_costs(dataset: Dataset, calls: Calls, modules: Hierarchy) -> Compiled:
    """What the work of compiled graphs costs. A subtree serves portions of kernels that are rows of other modules."""
    compiled = is_compiled(kernels(dataset.whole, ["method"]))
    work = whole = Kernels(dataset.whole.schema("kernels").empty_table())
    shares = KernelModules(KernelModules.SPEC.empty())
    if compiled.any():
        whole = kernels(dataset.whole, _WORK).filter(pa.array(compiled))
        work = weighted_work(dataset, whole)
        shares = dataset.whole.rows(KernelModules, ["kernel_id", "module_id", "flops", "flops_dtype", "flops_unknown"])
        shares = shares.filter(np.isin(shares.kernel_id, whole.kernel_id))
    width = int(shares.module_id.max(initial=0)) + 2
    keys = shares.kernel_id * width + shares.module_id
    row = positions(work.kernel_id * width + work.module_id, keys)
    words, flops = shares.flops_unknown, shares.flops
    place = [MULTIPLIED.index(word) if word in MULTIPLIED else -1 for word in shares.flops_dtype.words]
    call = positions(whole.call_id, calls.call_id)
    of_share = lookup(call, positions(shares.kernel_id, whole.kernel_id))
    computed = np.maximum(flops, 0)
    large = np.bincount(of_share + 1, computed, minlength=len(calls) + 1)[1:] >= MOST_FLOPS
    unknown = (counts(np.where(flops < 0, of_share, -1), len(calls)) > 0) | large
    return Compiled(
        work=work,
        module=modules.rows_of(work.module_id),
        ns=work.dur_ns,
        flops=lookup(flops, row),
        dtype=np.array([*place, -1], dtype=np.int64)[lookup(shares.flops_dtype.code, row)],
        unknown=np.where(lookup(flops, row) < 0, lookup(words.code, row), -1),
        words=[word or "" for word in words.words],
        of_call=sums(call, whole.dur_ns, len(calls)),
        flops_of_call=np.where(unknown, -1, sums(of_share, computed, len(calls))),
        held=counts(call, len(calls)) > 0,
    )


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
        held = work.bits & Work.COMPILED > 0
        operators = operators._replace(flops=np.where(held, -1, operators.flops))
    kind = kinds.numbered(calls, parent, owner, work, operators)
    flops = np.array([-1 if verdict.flops is None else verdict.flops for verdict in kinds.judged], np.int64)[kind]
    if operators is not None:
        flops = np.where(operators.flops >= 0, operators.flops, flops)
    compiled = compiled_costs(dataset, calls, modules)
    table = Calls(calls.table.drop_columns(_TENSORS))
    return Costs(dataset, table, parent, modules, owner, work.runs, flops, kinds, kind, work, compiled)
