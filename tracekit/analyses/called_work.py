"""The work of a report by call and step, and the times of its calls with all calls inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.phase_times import phase_rows
from tracekit.analyses.portions import first_portions, portions
from tracekit.analyses.served import served_modules
from tracekit.analyses.step_kinds import step_before
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, sums_by
from tracekit.arrays.labels import Labels, labels
from tracekit.arrays.lookups import positions
from tracekit.arrays.text import json_text
from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

#: The step of work outside steps.
NO_STEP = -1
_KERNELS = ["kernel_id", "module_id", "method", "call_id", "step_id", "name", "kind", "phase", "dur_ns"]
_KERNELS += ["start_ns", "launch_start_ns", "pid"]


class Work(NamedTuple):
    """Kernels, and where each belongs; -1 is no module and no step.

    Attributes:
        call: The call of each, or what stands for its module's work without a call.
        step: Its step.
        step_before: Outside steps the one that started last.
        phase: Its place among the phases.
        ns: Its time.
        number: 1, and 0 for further portions of one kernel.
        names: Its name.
    """

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


def called_work(dataset: Dataset, modules: Modules, *, steps: bool, shapes: bool) -> tuple[Work, Calls]:
    """The work of a report, and its calls.

    Args:
        dataset: The part of the dataset that is about the report.
        modules: The modules of the dataset.
        steps: Whether to tell steps apart; otherwise all work counts as one step.
        shapes: Whether to tell calls of a module apart by their input shapes.
    """
    kernels = portions(dataset, _KERNELS)
    calls = Calls(dataset, modules, kernels, shapes=shapes)
    return _work(dataset, kernels, calls.of_work, steps=steps), calls


class Calls:
    """Calls of a report, each with the number of its module and shapes; and modules inside compiled graphs.

    Attributes:
        of_work: The call of each piece of work, or what stands for its module's work without a call.
        paths: The name of the module of each number.
        shapes: The shapes of each number, or None.
    """

    def __init__(self, dataset: Dataset, modules: Modules, kernels: pa.Table, *, shapes: bool) -> None:
        columns = ["call_id", "parent_call_id", "module_id", *(["inputs", "kwargs"] if shapes else [])]
        calls = dataset.table("calls", columns)
        ids = integers(calls, "call_id")
        around = positions(integers(kernels, "call_id"), ids)
        served = served_modules(modules.parent, kernels, around, integers(calls, "module_id").astype(np.int64))
        self.of_work = served.of_work
        self._parent = np.append(positions(integers(calls, "parent_call_id"), ids), served.parent)
        module = modules.code[np.append(integers(calls, "module_id"), served.module)]
        texts = (_shapes(calls) if shapes else pa.nulls(calls.num_rows, pa.string())).dictionary_encode()
        shape = np.append(np.asarray(texts.indices.fill_null(-1)), np.full(served.module.size, -1)).astype(np.int64)
        self._key, first = grouped((module, shape))
        self.paths = [modules.paths[row] for row in module[first].tolist()]
        self.shapes = Labels(shape, texts.dictionary.to_pylist()).named(shape[first])

    def subtrees(self, work: Work) -> tuple[Rows, Ints, Ints, Ints]:
        """The number, step, time and kernels of every module and shapes, with all calls inside."""
        known = work.at(work.call >= 0)
        (call, step), ns, count = known.by(known.call, known.step)
        levels = [(self._key[call], step, ns, count)]
        while call.size:
            above = self._parent[call]
            inner = above >= 0
            call, step, ns, count = (column[inner] for column in (above, step, ns, count))
            levels.append((self._key[call], step, ns, count))
        key, step, ns, count = (np.concatenate(columns) for columns in zip(*levels, strict=True))
        (key, step), (ns, count) = sums_by((key, step), (ns, count))
        return key, step, ns, count

    def key_of(self, call: Rows) -> Rows:
        """The number of each call's module and shapes."""
        return self._key[call]


def _work(dataset: Dataset, kernels: pa.Table, call: Rows, *, steps: bool) -> Work:
    """The kernels with the rows of their calls; without names, they go by their kind."""
    step = integers(kernels, "step_id").astype(np.int64) if steps else np.zeros(kernels.num_rows, np.int64)
    before, outside = np.full(step.size, NO_STEP, np.int64), step == NO_STEP
    if outside.any():
        before[outside] = step_before(dataset, _launched(kernels.filter(pa.array(outside))))
    names, kinds = labels(kernels, "name"), labels(kernels, "kind")
    name = np.where(names.code >= 0, names.code, np.where(kinds.code >= 0, len(names.words) + kinds.code, -1))
    return Work(
        call,
        step,
        before,
        phase_rows(kernels),
        integers(kernels, "dur_ns"),
        first_portions(integers(kernels, "kernel_id")).astype(np.int64),
        Labels(name, [*names.words, *kinds.words]),
    )


def _launched(kernels: pa.Table) -> pd.DataFrame:
    """Process and launch time of every piece of work; its start if it has no launch."""
    time = pc.coalesce(kernels.column("launch_start_ns"), kernels.column("start_ns"))
    launches = {"pid": integers(kernels, "pid").astype(np.int64), "time": np.asarray(time)}
    if REPORT in kernels.column_names:
        launches[REPORT] = kernels.column(REPORT).cast(pa.string()).to_pylist()
    return pd.DataFrame(launches)


def _shapes(calls: pa.Table) -> pa.Array:
    """The shapes of the input tensors as JSON, those of keywords after the others."""
    inputs = json_text(calls.column("inputs"))
    kwargs = json_text(calls.column("kwargs"))
    empty = pc.fill_null(pc.equal(kwargs, "{}"), fill_value=True)
    both = pc.binary_join_element_wise(pc.fill_null(inputs, "[]"), kwargs, " ")
    return pc.if_else(empty, inputs, both)
