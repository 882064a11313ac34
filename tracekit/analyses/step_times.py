"""The time of every module in every step, by the shapes of its inputs: what two datasets are compared by."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.phase_times import PHASES, phase_rows
from tracekit.analyses.portions import first_portions, portions
from tracekit.analyses.served import served_modules
from tracekit.analyses.step_kinds import PROPERTIES, STEP, step_before, step_kinds
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, sums_by
from tracekit.arrays.lookups import positions
from tracekit.arrays.text import json_text
from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

#: The columns that name a thing to compare.
KEYS = ["what", "path", "shapes"]
_NO_MODULE, _BETWEEN = "(no module)", "(between steps)"
_NO_STEP = -1
_KERNELS = ["kernel_id", "module_id", "method", "call_id", "step_id", "name", "kind", "phase", "dur_ns"]
_KERNELS += ["start_ns", "launch_start_ns", "pid"]
_ALL_ALIKE = f"{STEP} {{}}"


class StepTimes(NamedTuple):
    """Times of one dataset.

    Attributes:
        times: A row per thing and step in which it had work: the columns ``KEYS``, ``step``, ``alike`` (equal for steps
            of like kind and size), ``ns`` (of a module, its subtree) and ``kernels``.
        kernels: A row per thing and kernel of its own, without those of modules below: ``KEYS``, ``alike``, ``name``,
            ``ns`` and ``kernels``, summed over all such steps.
        steps: How many steps have work; 0 if the dataset has none, and all work counts as one step.
        outside_ns: Time of work launched before the first step of its process, which is ignored.
        between: Times, as above, of work launched between steps, by the step that started last; with a row of 0 for
            steps after which there was none.
        phases: The same of the work in each phase (:data:`~tracekit.analyses.phase_times.PHASES`), if asked for.
    """

    times: pd.DataFrame
    kernels: pd.DataFrame
    steps: int
    outside_ns: int
    between: pd.DataFrame | None = None
    phases: Mapping[str, StepTimes] = MappingProxyType({})


class _Work(NamedTuple):
    """Kernels, and where each belongs; -1 is no module and no step.

    Attributes:
        call: The call of each, or what stands for its module's work without a call.
        step: Its step.
        step_before: Outside steps the one that started last.
        phase: Its place among the phases.
        ns: Its time.
        number: 1, and 0 for further portions of one kernel.
        name: Its name.
    """

    call: Ints
    step: Ints
    step_before: Ints
    phase: Rows
    ns: Ints
    number: Ints
    name: pa.DictionaryArray

    def at(self, rows: Flags) -> _Work:
        """Some of the kernels."""
        call, step, before, phase, ns, number = (column[rows] for column in self[:-1])
        return _Work(call, step, before, phase, ns, number, self.name.filter(pa.array(rows)))

    def by(self, *keys: Ints) -> tuple[list[Ints], Ints, Ints]:
        """The distinct keys, and the time and the number of the kernels with each."""
        distinct, (ns, count) = sums_by(keys, (self.ns, self.number))
        return distinct, ns, count


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
    of its call and for those of all calls around that, so that the time of a module is that of its subtree. Where only
    its module is known (a backward pass without markers), it counts for that and those above, without shapes.

    Args:
        dataset: The dataset.
        named: The name of each of its modules in the comparison.
        steps: Whether to tell steps apart; otherwise all work counts as one step.
        shapes: Whether to tell calls of a module apart by their input shapes.
        properties: The columns of ``steps`` that tell kinds and sizes of steps apart.
        phases: Whether to add up the work in each phase by itself, too.
    """
    kernels = portions(dataset, _KERNELS)
    calls = _Calls(dataset, named, kernels, shapes=shapes)
    work = _work(dataset, kernels, calls.of_work, steps=steps)
    kinds = step_kinds(dataset, properties) if steps else None
    whole = _added_up(work, calls, kinds)
    if not phases:
        return whole
    by_phase = {name: _added_up(work.at(work.phase == at), calls, kinds) for at, name in enumerate(PHASES)}
    return whole._replace(phases=by_phase)


def _added_up(work: _Work, calls: _Calls, kinds: pd.DataFrame | None) -> StepTimes:
    """The times of some work."""
    in_step, rest = work.at(work.step != _NO_STEP), work.at(work.step == _NO_STEP)
    if kinds is None:
        return StepTimes(_times(in_step, calls, None), calls.own(in_step, None), 0, 0)
    rest = rest._replace(step=rest.step_before)
    between = rest.at(rest.step != _NO_STEP)
    return StepTimes(
        times=_times(in_step, calls, kinds),
        kernels=pd.concat([calls.own(in_step, kinds), _own_between(between, kinds)], ignore_index=True),
        steps=int(np.unique(in_step.step).size),
        outside_ns=int(rest.ns.sum() - between.ns.sum()),
        between=_between(between, kinds),
    )


def _work(dataset: Dataset, kernels: pa.Table, call: Rows, *, steps: bool) -> _Work:
    """The kernels with the rows of their calls; without names, they go by their kind."""
    step = integers(kernels, "step_id").astype(np.int64) if steps else np.zeros(kernels.num_rows, np.int64)
    before, outside = np.full(step.size, _NO_STEP, np.int64), step == _NO_STEP
    if outside.any():
        before[outside] = step_before(dataset, _launched(kernels.filter(pa.array(outside))))
    name = pc.coalesce(kernels.column("name").cast(pa.string()), kernels.column("kind").cast(pa.string()))
    return _Work(
        call,
        step,
        before,
        phase_rows(kernels),
        integers(kernels, "dur_ns"),
        first_portions(integers(kernels, "kernel_id")).astype(np.int64),
        name.combine_chunks().dictionary_encode(),
    )


def _times(work: _Work, calls: _Calls, kinds: pd.DataFrame | None) -> pd.DataFrame:
    """Times of whole steps, of work without a module, and of modules."""
    parts = [_whole_steps(work, kinds), _without_module(work), calls.subtrees(work)]
    return _with_alike(pd.concat(parts, ignore_index=True), kinds)


def _launched(kernels: pa.Table) -> pd.DataFrame:
    """Process and launch time of every piece of work; its start if it has no launch."""
    time = pc.coalesce(kernels.column("launch_start_ns"), kernels.column("start_ns"))
    launches = {"pid": integers(kernels, "pid").astype(np.int64), "time": np.asarray(time)}
    if REPORT in kernels.column_names:
        launches[REPORT] = kernels.column(REPORT).cast(pa.string()).to_pylist()
    return pd.DataFrame(launches)


def _with_alike(rows: pd.DataFrame, kinds: pd.DataFrame | None) -> pd.DataFrame:
    """The rows, with the kind and size of each one's step."""
    if kinds is None:
        return rows.assign(alike=_ALL_ALIKE)
    return rows.assign(alike=kinds["alike"].reindex(rows["step"]).to_numpy())


class _Calls:
    """Calls of a dataset, each with the number of its module and shapes; and modules inside compiled graphs."""

    def __init__(self, dataset: Dataset, named: list[str], kernels: pa.Table, *, shapes: bool) -> None:
        calls = dataset.table("calls", ["call_id", "parent_call_id", "module_id", "inputs", "kwargs"])
        ids = integers(calls, "call_id")
        around = positions(integers(kernels, "call_id"), ids)
        served = served_modules(dataset, kernels, around, integers(calls, "module_id").astype(np.int64))
        self.of_work = served.of_work
        self._parent = np.append(positions(integers(calls, "parent_call_id"), ids), served.parent)
        # Modules of several roots can get the same name.
        paths, code = np.unique(np.array(named, dtype=object), return_inverse=True)
        module = code[np.append(integers(calls, "module_id"), served.module)].astype(np.int64)
        texts = (_shapes(calls) if shapes else pa.nulls(calls.num_rows, pa.string())).dictionary_encode()
        shape = np.append(np.asarray(texts.indices.fill_null(-1)), np.full(served.module.size, -1)).astype(np.int64)
        self._key, first = grouped((module, shape))
        self._key_path = paths[module[first]]
        self._key_shapes = np.array([*texts.dictionary.to_pylist(), None], dtype=object)[shape[first]]

    def subtrees(self, work: _Work) -> pd.DataFrame:
        """Times of every module and shape, with all calls inside."""
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
        return pd.DataFrame({**self._names(key), "step": step, "ns": ns, "kernels": count})

    def own(self, work: _Work, kinds: pd.DataFrame | None) -> pd.DataFrame:
        """Kernels of every module and shape itself, by name."""
        known = work.at(work.call >= 0)
        return _by_name(known, self._key[known.call], self._names, kinds)

    def _names(self, key: Ints) -> dict[str, object]:
        return {
            "what": np.full(key.size, "module", dtype=object),
            "path": self._key_path[key],
            "shapes": self._key_shapes[key],
        }


def _by_name(
    work: _Work,
    key: Ints,
    names_of: Callable[[Ints], dict[str, object]],
    kinds: pd.DataFrame | None,
) -> pd.DataFrame:
    """Kernels by key, by kind and size of their step, and by name."""
    if kinds is None:
        texts, alike = np.array([_ALL_ALIKE], dtype=object), np.zeros(work.step.size, np.int64)
    else:
        code, texts = pd.factorize(kinds["alike"].to_numpy())
        alike = code[kinds.index.get_indexer(pd.Index(work.step))].astype(np.int64)
    (key, alike, name), ns, count = work.by(key, alike, np.asarray(work.name.indices).astype(np.int64))
    kernels = np.array(work.name.dictionary.to_pylist(), dtype=object)
    return pd.DataFrame({**names_of(key), "alike": texts[alike], "name": kernels[name], "ns": ns, "kernels": count})


def _whole_steps(work: _Work, kinds: pd.DataFrame | None) -> pd.DataFrame:
    """Times of whole steps by their kind, and again by kind and size for steps whose size is known."""
    (step,), ns, count = work.by(work.step)
    if kinds is None:
        return _rows("step", np.full(step.size, "all", dtype=object), step, ns, count)
    of_steps = kinds.reindex(step)
    by_kind = _rows("step", of_steps["kind"].to_numpy(), step, ns, count)
    by_size = by_kind.assign(shapes=of_steps["size"].to_numpy())
    return pd.concat([by_kind, by_size[by_size["shapes"].notna()]], ignore_index=True)


def _between(work: _Work, kinds: pd.DataFrame) -> pd.DataFrame:
    """Times of work between steps, with a row for every step: 0 if nothing came after it."""
    every = np.asarray(kinds.index, np.int64)
    nothing = np.zeros(every.size, np.int64)
    ones = np.ones(work.ns.size, np.int64)
    columns = ((work.step, every), (work.ns, nothing), (ones, nothing))
    steps, times, kernels = (np.concatenate(parts) for parts in columns)
    (step,), (ns, count) = sums_by((steps,), (times, kernels))
    return _with_alike(_rows("between", np.full(step.size, _BETWEEN, object), step, ns, count), kinds)


def _own_between(work: _Work, kinds: pd.DataFrame) -> pd.DataFrame:
    """Kernels between steps, by name."""

    def names_of(key: Ints) -> dict[str, object]:
        names = {"what": "between", "path": _BETWEEN, "shapes": None}
        return {column: np.full(key.size, name, dtype=object) for column, name in names.items()}

    return _by_name(work, np.zeros(work.step.size, np.int64), names_of, kinds)


def _without_module(work: _Work) -> pd.DataFrame:
    """Times of work without a module."""
    rest = work.at(work.call < 0)
    (step,), ns, count = rest.by(rest.step)
    return _rows("unknown", np.full(step.size, _NO_MODULE, dtype=object), step, ns, count)


def _rows(what: str, path: object, step: Ints, ns: Ints, kernels: Ints) -> pd.DataFrame:
    """Times without shapes, under one ``what``."""
    rows = pd.DataFrame({"path": path, "step": step, "ns": ns, "kernels": kernels})
    rows.insert(0, "what", pd.Series([what] * len(rows), dtype=object))
    rows.insert(2, "shapes", pd.Series([None] * len(rows), dtype=object))
    return rows


def _shapes(calls: pa.Table) -> pa.Array:
    """The shapes of the input tensors as JSON, those of keywords after the others."""
    inputs = json_text(calls.column("inputs"))
    kwargs = json_text(calls.column("kwargs"))
    empty = pc.fill_null(pc.equal(kwargs, "{}"), fill_value=True)
    both = pc.binary_join_element_wise(pc.fill_null(inputs, "[]"), kwargs, " ")
    return pc.if_else(empty, inputs, both)
