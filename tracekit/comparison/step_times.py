"""The times of modules by step: device work by the call that it counts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.each_report import Totals, Words
from tracekit.aggregates.phase_times import PHASES, phase_rows
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import first_of_kernel, names_of, weighted_kernels
from tracekit.arrays.codes import Labels, labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, sums_by
from tracekit.arrays.text import json_text
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.comparison.step_metrics import KEYS, PROPERTIES, STEP, KeyRows, Keys, KeyTimes, step_before, step_kinds
from tracekit.dataset.opening import REPORT, Dataset

#: The step of work outside steps.
NO_STEP = -1
_KERNELS = ["kernel_id", "module_id", "method", "call_id", "step_id", "name", "kind", "phase", "dur_ns"]
_KERNELS += ["start_ns", "launch_start_ns", "pid"]


class Work(NamedTuple):
    """Kernels, and where each belongs; -1 is no call and no step. ``number`` is 0 for further portions of a kernel."""

    call: Ints
    step: Ints
    step_before: Ints
    phase: Rows
    ns: Ints
    number: Ints
    names: Labels

    def at(self, rows: Flags) -> Work:
        """Some of the kernels."""
        call, step, before, phase, ns, number = (column[rows] for column in self[:-1])
        return Work(call, step, before, phase, ns, number, self.names._replace(code=self.names.code[rows]))

    def by(self, *keys: Ints) -> tuple[list[Ints], Ints, Ints]:
        """The distinct keys, and the time and the number of the kernels with each."""
        distinct, (ns, count) = sums_by(keys, (self.ns, self.number))
        return distinct, ns, count


class Modules:
    """The modules of all reports, and their names in the comparison, which those of several roots can share."""

    def __init__(self, dataset: Dataset, named: list[str]) -> None:
        self.parent = hierarchy(dataset).parent
        paths, code = np.unique(np.array(named, dtype=object), return_inverse=True)
        self.paths, self.code = paths.tolist(), code.astype(np.int64)


class Calls:
    """Calls of a report, each with the number of its module and shapes; and modules inside compiled graphs."""

    def __init__(self, dataset: Dataset, modules: Modules, kernels: pa.Table, *, shapes: bool) -> None:
        columns = ["call_id", "parent_call_id", "module_id", *(["inputs", "kwargs"] if shapes else [])]
        calls = dataset.table("calls", columns)
        ids = integers(calls, "call_id")
        around = positions(integers(kernels, "call_id"), ids)
        compiled = compiled_modules(modules.parent, kernels, around, integers(calls, "module_id").astype(np.int64))
        self.of_work = compiled.of_work
        self._parent = np.append(positions(integers(calls, "parent_call_id"), ids), compiled.parent)
        module = modules.code[np.append(integers(calls, "module_id"), compiled.module)]
        texts = (_shapes(calls) if shapes else pa.nulls(calls.num_rows, pa.string())).dictionary_encode()
        shape = np.append(np.asarray(texts.indices.fill_null(-1)), np.full(compiled.module.size, -1)).astype(np.int64)
        self.key, first = grouped((module, shape))
        self.paths = [modules.paths[row] for row in module[first].tolist()]
        self.shapes = Labels(shape, texts.dictionary.to_pylist()).named(shape[first])

    def subtrees(self, work: Work) -> tuple[Rows, Ints, Ints, Ints]:
        """The number, step, time and kernels of every module and shapes, with all calls inside."""
        known = work.at(work.call >= 0)
        (call, step), ns, count = known.by(known.call, known.step)
        levels = [(self.key[call], step, ns, count)]
        while call.size:
            above = self._parent[call]
            inner = above >= 0
            call, step, ns, count = (column[inner] for column in (above, step, ns, count))
            levels.append((self.key[call], step, ns, count))
        key, step, ns, count = (np.concatenate(columns) for columns in zip(*levels, strict=True))
        (key, step), (ns, count) = sums_by((key, step), (ns, count))
        return key, step, ns, count


def _work(dataset: Dataset, kernels: pa.Table, call: Rows, *, steps: bool) -> Work:
    step = integers(kernels, "step_id").astype(np.int64) if steps else np.zeros(kernels.num_rows, np.int64)
    before, outside = np.full(step.size, NO_STEP, np.int64), step == NO_STEP
    if outside.any():
        before[outside] = step_before(dataset, _launched(kernels.filter(pa.array(outside))))
    return Work(
        call,
        step,
        before,
        phase_rows(labels(kernels, "phase")),
        integers(kernels, "dur_ns"),
        first_of_kernel(integers(kernels, "kernel_id")).astype(np.int64),
        names_of(kernels),
    )


def _launched(kernels: pa.Table) -> pd.DataFrame:
    time = pc.coalesce(kernels.column("launch_start_ns"), kernels.column("start_ns"))
    launches = {"pid": integers(kernels, "pid").astype(np.int64), "time": np.asarray(time)}
    if REPORT in kernels.column_names:
        launches[REPORT] = kernels.column(REPORT).cast(pa.string()).to_pylist()
    return pd.DataFrame(launches)


def _shapes(calls: pa.Table) -> pa.Array:
    inputs = json_text(calls.column("inputs"))
    kwargs = json_text(calls.column("kwargs"))
    empty = pc.fill_null(pc.equal(kwargs, "{}"), fill_value=True)
    both = pc.binary_join_element_wise(pc.fill_null(inputs, "[]"), kwargs, " ")
    return pc.if_else(empty, inputs, both)


class CompiledModules(NamedTuple):
    """Modules that kernels of compiled graphs serve, numbered after all calls, and what each is in; -1 is none."""

    of_work: Rows
    module: Rows
    parent: Rows


def compiled_modules(above: Rows, kernels: pa.Table, call: Rows, module_of_call: Ints) -> CompiledModules:
    """Finds them, given the module above each module, portions of work, and their calls; -1 is none."""
    method = labels(kernels, "method")
    compiled = np.isin(method.code, method.of("compiled"))
    rows = np.flatnonzero((compiled | (call < 0)) & (integers(kernels, "module_id") >= 0))
    modules = np.append(module_of_call, -1)
    width = above.size + 1
    module = integers(kernels, "module_id")[rows].astype(np.int64)
    wanted = codes = np.where(module == modules[call[rows]], -1, (call[rows] + 1) * width + module)
    found = [np.unique(codes[codes >= 0])]
    while found[-1].size:
        around, inside = np.divmod(found[-1], width)
        outer = above[inside]
        kept = (outer >= 0) & (outer != modules[around - 1])
        found.append(np.unique(around[kept] * width + outer[kept]))
    codes = np.unique(np.concatenate(found))
    around, inside = np.divmod(codes, width)
    outer = above[inside]
    between = (outer >= 0) & (outer != modules[around - 1])
    parent = np.where(between, module_of_call.size + np.searchsorted(codes, around * width + outer), around - 1)
    of_work = call.copy()
    of_work[rows[wanted >= 0]] = module_of_call.size + np.searchsorted(codes, wanted[wanted >= 0])
    return CompiledModules(of_work, inside, parent)


_NO_MODULE, _BETWEEN = "(no module)", "(between steps)"
_STEP, _MODULE = "step", "module"
#: What the kernels of things are added up by.
_OWN = ("key", "alike", "name")
_ALL_ALIKE = f"{STEP} {{}}"


class StepTimes(NamedTuple):
    """Times of one dataset.

    Attributes:
        times: A row per thing and step in which it had work.
        kernels: A row per thing and kernel of its own, without those of modules below: ``KEYS``, ``alike``, ``name``,
            ``ns`` and ``kernels``, summed over all such steps.
        steps: How many steps have work; 0 if the dataset has none, and all work counts as one step.
        outside_ns: Time of work launched before the first step of its process, which is ignored.
        between: Times, as above, of work launched between steps, by the step that started last; with a row of 0 for
            steps after which there was none.
        phases: The same of the work in each phase (:data:`~tracekit.aggregates.phase_times.PHASES`), if asked for.
    """

    times: KeyTimes
    kernels: pd.DataFrame
    steps: int
    outside_ns: int
    between: KeyTimes | None = None
    phases: Mapping[str, StepTimes] = MappingProxyType({})


def step_times(
    dataset: Dataset,
    named: list[str],
    *,
    steps: bool,
    shapes: bool,
    properties: frozenset[str] = PROPERTIES,
    phases: bool = False,
) -> StepTimes:
    """Adds up the kernels of every step by whole step, by module, and those without a module.

    A kernel counts in the step that launched it, also if it was replayed from a CUDA graph. It counts for the module
    of its call and for those of all calls around that, so that the time of a module is that of its subtree. If only
    its module is known (a backward pass without markers), it counts for that and those above, without shapes.

    Args:
        dataset: The dataset.
        named: The name of each of its modules in the comparison.
        steps: Whether to distinguish steps; otherwise all work counts as one step.
        shapes: Whether to distinguish calls of a module by their input shapes.
        properties: The columns of ``steps`` that distinguish kinds and sizes of steps.
        phases: Whether to add up the work in each phase separately, too.
    """
    words, modules = _Words(Keys(), Words(), Words()), Modules(dataset, named)
    whole = _Gathered(words, steps=steps)
    by_phase = {name: _Gathered(words, steps=steps) for name in (PHASES if phases else ())}
    for part in dataset.by_report():
        kernels = weighted_kernels(part, _KERNELS).table
        calls = Calls(part, modules, kernels, shapes=shapes)
        work = _work(part, kernels, calls.of_work, steps=steps)
        del kernels  # the largest of all
        kinds = _Kinds(part, properties, words.alikes) if steps else None
        whole.add(work, calls, kinds)
        for name, gathered in by_phase.items():
            gathered.add(work.at(work.phase == PHASES.index(name)), calls, kinds)
    return whole.step_times()._replace(phases={name: gathered.step_times() for name, gathered in by_phase.items()})


class _Words(NamedTuple):
    """What is numbered alike in all reports: things, texts of steps, and names of kernels."""

    keys: Keys
    alikes: Words
    names: Words


class _Gathered:
    def __init__(self, words: _Words, *, steps: bool) -> None:
        self._words, self._with_steps = words, steps
        self._times, self._between = KeyRows(), KeyRows()
        self._own = Totals([*_OWN], dict.fromkeys(("ns", "kernels"), "sum"))
        self._steps = self._outside_ns = 0

    def add(self, work: Work, calls: Calls, kinds: _Kinds | None) -> None:
        """Adds some work of a report."""
        if kinds is None:
            self._add_in_steps(work, calls, None)
            return
        in_step, rest = work.at(work.step != NO_STEP), work.at(work.step == NO_STEP)
        between = rest.at(rest.step_before != NO_STEP)
        self._add_in_steps(in_step, calls, kinds)
        self._add_between(between._replace(step=between.step_before), calls, kinds)
        self._steps += np.unique(in_step.step).size
        self._outside_ns += int(rest.ns.sum() - between.ns.sum())

    def step_times(self) -> StepTimes:
        """The times of all of them."""
        keys, alikes, own = self._words.keys.named(), self._words.alikes.all(), self._own.frame()
        kernels = pd.DataFrame([keys[at] for at in own["key"]], columns=KEYS, dtype=object)
        kernels["alike"] = self._words.alikes.named(own["alike"])
        kernels["name"] = pd.Series(self._words.names.named(own["name"]), dtype=object)
        kernels[["ns", "kernels"]] = own[["ns", "kernels"]]
        times = self._times.times(keys, alikes, one_step=not self._with_steps)
        if not self._with_steps:
            return StepTimes(times, kernels, 0, 0)
        between = self._between.times(keys, alikes, one_step=False)
        return StepTimes(times, kernels, self._steps, self._outside_ns, between)

    def _add_in_steps(self, work: Work, calls: Calls, kinds: _Kinds | None) -> None:
        keys, (step,), ns, count = self._words.keys, *work.by(work.step)
        alike = self._alike(step, kinds)
        if kinds is None:
            self._times.add(keys.codes(_STEP, ["all"], [None], np.zeros_like(step)), alike, ns, count)
        else:
            at = kinds.rows(step)
            self._times.add(keys.codes(_STEP, kinds.kind, [None] * len(kinds.kind), at), alike, ns, count)
            sized = np.flatnonzero(kinds.sized[at])
            of_size = keys.codes(_STEP, kinds.kind, kinds.size, at[sized])
            self._times.add(of_size, alike[sized], ns[sized], count[sized])
        unattributed = work.at(work.call < 0)
        (step,), ns, count = unattributed.by(unattributed.step)
        self._times.add(self._single("unknown", _NO_MODULE, step), self._alike(step, kinds), ns, count)
        key, step, ns, count = calls.subtrees(work)
        self._times.add(keys.codes(_MODULE, calls.paths, calls.shapes, key), self._alike(step, kinds), ns, count)
        own = work.at(work.call >= 0)
        self._add_own(own, calls.key[own.call], kinds, (_MODULE, calls.paths, calls.shapes))

    def _add_between(self, work: Work, calls: Calls, kinds: _Kinds) -> None:
        """Times of work between steps, with a row for every step: 0 if nothing came after it; and those of modules."""
        nothing = np.zeros(kinds.ids.size, np.int64)
        ones = np.ones(work.ns.size, np.int64)
        columns = ((work.step, kinds.ids), (work.ns, nothing), (ones, nothing))
        steps, times, kernels = (np.concatenate(parts) for parts in columns)
        (step,), (ns, count) = sums_by((steps,), (times, kernels))
        self._between.add(self._single("between", _BETWEEN, step), self._alike(step, kinds), ns, count)
        own, rest = work.at(work.call >= 0), work.at(work.call < 0)
        self._add_own(rest, np.zeros_like(rest.step), kinds, ("between", [_BETWEEN], [None]))
        named = ("between", [f"{_BETWEEN}.{path}" for path in calls.paths], calls.shapes)
        key, step, ns, count = calls.subtrees(work)
        self._times.add(self._words.keys.codes(*named, key), self._alike(step, kinds), ns, count)
        self._add_own(own, calls.key[own.call], kinds, named)

    def _add_own(
        self, work: Work, key: Rows, kinds: _Kinds | None, keys: tuple[str, Sequence[str], Sequence[str | None]]
    ) -> None:
        name = self._words.names.codes(work.names)
        (key, alike, name), ns, count = work.by(key, self._alike(work.step, kinds), name)
        columns = (self._words.keys.codes(*keys, key), alike, name, ns, count)
        self._own.add(dict(zip((*_OWN, "ns", "kernels"), columns, strict=True)))

    def _alike(self, step: Ints, kinds: _Kinds | None) -> Rows:
        if kinds is None:
            return self._words.alikes.codes(Labels(np.zeros_like(step), [_ALL_ALIKE]))
        return kinds.alike[kinds.rows(step)]

    def _single(self, what: str, path: str, step: Ints) -> Rows:
        return self._words.keys.codes(what, [path], [None], np.zeros_like(step))


class _Kinds:
    """The steps of a report: their kinds and sizes, and numbers for what they are like."""

    def __init__(self, dataset: Dataset, properties: frozenset[str], alikes: Words) -> None:
        kinds = step_kinds(dataset, properties, places=True)
        self.ids = np.asarray(kinds.index, np.int64)
        self.kind, self.size = kinds["kind"].tolist(), kinds["size"].tolist()
        self.sized = np.array([size is not None for size in self.size], bool)
        texts = kinds["alike"].tolist()
        self.alike = alikes.codes(Labels(np.arange(len(texts)), texts))

    def rows(self, step: Ints) -> Rows:
        """The place of each of some steps."""
        return positions(step, self.ids)
