"""The times of modules by step: device work by the call that it counts for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.each_report import Totals
from tracekit.aggregates.phase_times import PHASES, phase_rows
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import first_of_kernel, names_of, weighted_kernels
from tracekit.arrays.codes import Labels, labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, sums_by
from tracekit.arrays.text import json_text
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.comparison.step_metrics import PROPERTIES, STEP, KeyRows, KeyTimes, Met, Sorted, step_before, step_kinds
from tracekit.dataset.opening import Dataset

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
        before[outside] = step_before(dataset, kernels.filter(pa.array(outside)))
    return Work(
        call,
        step,
        before,
        phase_rows(labels(kernels, "phase")),
        integers(kernels, "dur_ns"),
        first_of_kernel(integers(kernels, "kernel_id")).astype(np.int64),
        names_of(kernels),
    )


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


_BETWEEN = "(between steps)"
#: What the kernels of things are added up by.
_OWN = ["key", "alike", "name"]
#: What things are, with the paths and shapes of all of them.
_Named = tuple[str, Sequence[str], Sequence[str | None]]


class StepTimes(NamedTuple):
    """Times of one dataset.

    Attributes:
        times: A row per thing and step in which it had work.
        kernels: A row per thing and kernel of its own, without those of modules below: ``key`` and ``alike`` as in
            times, ``name``, ``ns`` and ``kernels``, summed over all such steps.
        steps: How many steps have work; 0 if all work counts as one.
        outside_ns: Time of work launched before the first step of its process, which is ignored.
        between: Times of work launched between steps, by the step that started last; 0 for steps after which was none.
        phases: The same of the work in each phase, if asked for.
    """

    times: KeyTimes
    kernels: pd.DataFrame
    steps: int
    outside_ns: int
    between: KeyTimes
    phases: Mapping[str, StepTimes] = MappingProxyType({})


def step_times(
    sides: Iterable[tuple[Dataset, list[str]]],
    *,
    steps: bool,
    shapes: bool,
    properties: frozenset[str] = PROPERTIES,
    phases: bool = False,
) -> list[StepTimes]:
    """Adds up the kernels of every step by whole step, by module, and those without a module, for each dataset.

    A kernel counts in the step that launched it, also if it was replayed from a CUDA graph. It counts for the module
    of its call and for those of all calls around that, so that the time of a module is that of its subtree. If only
    its module is known (a backward pass without markers), it counts for that and those above, without shapes.

    ``sides`` are the datasets with the names of their modules in the comparison, and ``properties`` the columns of
    ``steps`` that distinguish kinds and sizes. Without ``steps`` all work counts as one step; ``shapes`` distinguishes
    calls by their input shapes.
    """
    met, gathered = Met(), []
    for dataset, named in sides:
        whole, *by_phase = (_Gathered(met, steps=steps) for _ in ("whole", *(PHASES if phases else ())))
        modules = Modules(dataset, named)
        for part in dataset.by_report():
            kernels = weighted_kernels(part, _KERNELS).table
            calls = Calls(part, modules, kernels, shapes=shapes)
            work = _work(part, kernels, calls.of_work, steps=steps)
            del kernels  # the largest of all
            kinds = _Kinds(part, properties if steps else None, met)
            whole.add(work, calls, kinds)
            for phase, gathered_of_phase in enumerate(by_phase):
                gathered_of_phase.add(work.at(work.phase == phase), calls, kinds)
        gathered.append((whole, by_phase))
    names = met.sorted()
    return [
        whole.step_times(names)._replace(
            phases=dict(zip(PHASES, (part.step_times(names) for part in by_phase), strict=False))
        )
        for whole, by_phase in gathered
    ]


class _Gathered:
    """Times of some work of a dataset."""

    def __init__(self, met: Met, *, steps: bool) -> None:
        self._met, self._with_steps = met, steps
        self._times, self._between = KeyRows(), KeyRows()
        self._own = Totals(_OWN, ("ns", "kernels"))
        self._steps = self._outside_ns = 0

    def add(self, work: Work, calls: Calls, kinds: _Kinds) -> None:
        in_step, rest = work.at(work.step != NO_STEP), work.at(work.step == NO_STEP)
        self._add_in_steps(in_step, calls, kinds)
        if not self._with_steps:
            return
        between = rest.at(rest.step_before != NO_STEP)
        self._add_between(between._replace(step=between.step_before), calls, kinds)
        self._steps += np.unique(in_step.step).size
        self._outside_ns += int(rest.ns.sum() - between.ns.sum())

    def step_times(self, names: Sorted) -> StepTimes:
        own = self._own.frame()
        kernels = own.assign(
            key=names.key[own["key"]],
            alike=names.alike[own["alike"]],
            name=pd.Series(self._met.kernels.named(own["name"]), dtype=object),
        )
        times = self._times.times(names, one_step=not self._with_steps)
        between = self._between.times(names, one_step=False)
        return StepTimes(times, kernels, self._steps, self._outside_ns, between)

    def _add_in_steps(self, work: Work, calls: Calls, kinds: _Kinds) -> None:
        (step,), ns, count = work.by(work.step)
        at = positions(step, kinds.ids)
        unsized = self._met.codes("step", kinds.kind, [None] * len(kinds.kind), at)
        self._times.add(unsized, kinds.alike[at], ns, count)
        sized = np.flatnonzero(kinds.sized[at])
        of_size = self._met.codes("step", kinds.kind, kinds.size, at[sized])
        self._times.add(of_size, kinds.alike[at[sized]], ns[sized], count[sized])
        own, rest = work.at(work.call >= 0), work.at(work.call < 0)
        (step,), ns, count = rest.by(rest.step)
        self._times.add(self._single("unknown", "(no module)", step), kinds.alike_of(step), ns, count)
        self._add_modules(work, own, calls, kinds, ("module", calls.paths, calls.shapes))

    def _add_between(self, work: Work, calls: Calls, kinds: _Kinds) -> None:
        """Times of work between steps, with a row for every step: 0 if nothing came after it; and those of modules."""
        nothing = np.zeros(kinds.ids.size, np.int64)
        ones = np.ones(work.ns.size, np.int64)
        columns = ((work.step, kinds.ids), (work.ns, nothing), (ones, nothing))
        steps, times, kernels = (np.concatenate(parts) for parts in columns)
        (step,), (ns, count) = sums_by((steps,), (times, kernels))
        self._between.add(self._single("between", _BETWEEN, step), kinds.alike_of(step), ns, count)
        own, rest = work.at(work.call >= 0), work.at(work.call < 0)
        self._add_own(rest, np.zeros_like(rest.step), kinds, ("between", [_BETWEEN], [None]))
        named = [f"{_BETWEEN}.{path}" for path in calls.paths]
        self._add_modules(work, own, calls, kinds, ("between", named, calls.shapes))

    def _add_modules(self, work: Work, own: Work, calls: Calls, kinds: _Kinds, named: _Named) -> None:
        key, step, ns, count = calls.subtrees(work)
        self._times.add(self._met.codes(*named, key), kinds.alike_of(step), ns, count)
        self._add_own(own, calls.key[own.call], kinds, named)

    def _add_own(self, work: Work, key: Rows, kinds: _Kinds, named: _Named) -> None:
        by = (key, kinds.alike_of(work.step), self._met.kernels.codes(work.names))
        (key, alike, name), ns, count = work.by(*by)
        columns = (self._met.codes(*named, key), alike, name, ns, count)
        self._own.add(dict(zip((*_OWN, "ns", "kernels"), columns, strict=True)))

    def _single(self, what: str, path: str, step: Ints) -> Rows:
        return self._met.codes(what, [path], [None], np.zeros_like(step))


class _Kinds:
    """The steps of a report: kinds, sizes, and numbers for what they are like; without properties all is one step."""

    def __init__(self, dataset: Dataset, properties: frozenset[str] | None, met: Met) -> None:
        if properties is None:
            kinds = pd.DataFrame({"kind": "all", "size": None, "alike": f"{STEP} {{}}"}, index=[0], dtype=object)
        else:
            kinds = step_kinds(dataset, properties, places=True)
        self.ids = np.asarray(kinds.index, np.int64)
        self.kind, self.size = kinds["kind"].tolist(), kinds["size"].tolist()
        self.sized = np.array([size is not None for size in self.size], bool)
        texts = kinds["alike"].tolist()
        self.alike = met.alikes.codes(Labels(np.arange(len(texts)), texts))

    def alike_of(self, step: Ints) -> Rows:
        return self.alike[positions(step, self.ids)]
