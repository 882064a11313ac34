"""What every module took in every step, by the shapes that it was called with: what two datasets are compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.step_kinds import ALL_TOLD, STEP, step_before, step_kinds
from tracekit.arrays.text import json_text
from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arrays.types import Flags, Ints
    from tracekit.dataset.opening import Dataset

#: What tells one thing that is compared from another.
KEYS = ["what", "path", "shapes"]
_NOBODY, _BETWEEN = "(no module)", "(between steps)"
_NO_STEP = -1
_KERNELS = [
    "call_id",
    "step_id",
    "name",
    "kind",
    "dur_ns",
    "start_ns",
    "launch_start_ns",
    "pid",
]
_ALL_ALIKE = f"{STEP} {{}}"


class StepTimes(NamedTuple):
    """Times of one dataset.

    Attributes:
        times: A row per thing and step in which it had work: the columns ``KEYS``, ``step``, ``alike`` (the same for
            steps of like kind and size), ``ns`` (of a module, its subtree) and ``kernels``.
        kernels: A row per thing and kernel of its own (without those of modules below): ``KEYS``, ``alike``, ``name``,
            ``ns`` and ``kernels``, summed over all such steps.
        steps: How many steps have work; 0 if the dataset has none, and all work is taken for one step.
        outside_ns: Time of work that no step of its process came before, which is left out.
        between: Times, as above, of what was launched outside of steps, by the step that had begun last: also of steps
            after which there was nothing.
    """

    times: pd.DataFrame
    kernels: pd.DataFrame
    steps: int
    outside_ns: int
    between: pd.DataFrame | None = None


class _Work(NamedTuple):
    """Kernels that are counted, and where each belongs."""

    call: Ints
    step: Ints
    ns: Ints
    name: pa.DictionaryArray

    def at(self, rows: Flags) -> _Work:
        return _Work(self.call[rows], self.step[rows], self.ns[rows], self.name.filter(pa.array(rows)))


def step_times(
    dataset: Dataset,
    named: Callable[[list[str]], list[str]],
    *,
    steps: bool,
    shapes: bool,
    told: frozenset[str] = ALL_TOLD,
) -> StepTimes:
    """Adds up the kernels of every step by whole step, module and work without a module.

    A kernel counts in the step that launched it, also if it was replayed from a CUDA graph. Its module is that of its
    call; around that, every call that encloses it has it too, so that the time of a module is that of its subtree.

    Args:
        dataset: The dataset.
        named: What to call modules, given their paths.
        steps: Whether to tell steps apart; else all work counts as of one.
        shapes: Whether to tell apart calls of a module with inputs of other shapes.
        told: What tells kinds and sizes of steps apart.
    """
    kernels = dataset.table("kernels", [*_KERNELS, *([REPORT] if dataset.reports else [])])
    kinds = step_kinds(dataset, told) if steps else None
    step = _ids(kernels, "step_id") if steps else np.zeros(kernels.num_rows, np.int64)
    calls = _Calls(dataset, named, shapes=shapes)
    name = pc.coalesce(kernels.column("name").cast(pa.string()), kernels.column("kind").cast(pa.string()))
    work = _Work(
        calls.row_of(_ids(kernels, "call_id")),
        step,
        np.asarray(kernels.column("dur_ns")),
        name.combine_chunks().dictionary_encode(),
    )
    inside = work.at(step != _NO_STEP)
    parts = [_whole_steps(inside, kinds), _nobodys(inside), calls.subtrees(inside)]
    times, own = _alike(pd.concat(parts, ignore_index=True), kinds), calls.own(inside, kinds)
    if kinds is None:
        return StepTimes(times, own, 0, 0)
    outside = step == _NO_STEP
    before = step_before(dataset, _launched(kernels.filter(pa.array(outside))))
    rest = work.at(outside)._replace(step=np.asarray(before))
    between = rest.at(rest.step != _NO_STEP)
    own = pd.concat([own, _own_between(between, kinds)], ignore_index=True)
    left_out = int(rest.ns.sum() - between.ns.sum())
    count = int(np.unique(inside.step).size)
    return StepTimes(times, own, count, left_out, _between(between, kinds))


def _launched(kernels: pa.Table) -> pd.DataFrame:
    """Process and time of the launch of every piece of work; of work without one, its start."""
    time = pc.coalesce(kernels.column("launch_start_ns"), kernels.column("start_ns"))
    found = {"pid": _ids(kernels, "pid"), "time": np.asarray(time)}
    if REPORT in kernels.column_names:
        found[REPORT] = kernels.column(REPORT).cast(pa.string()).to_pylist()
    return pd.DataFrame(found)


def _alike(rows: pd.DataFrame, kinds: pd.DataFrame | None) -> pd.DataFrame:
    """The rows, with the kind and size of each one's step."""
    if kinds is None:
        return rows.assign(alike=_ALL_ALIKE)
    return rows.assign(alike=kinds["alike"].reindex(rows["step"]).to_numpy())


def has_steps(dataset: Dataset) -> bool:
    """Whether any work of the dataset belongs to a step."""
    return bool(pc.any(dataset.table("kernels", ["step_id"]).column("step_id").is_valid()).as_py())


class _Calls:
    """Calls of a dataset, each with the number of its module and shapes."""

    def __init__(self, dataset: Dataset, named: Callable[[list[str]], list[str]], *, shapes: bool) -> None:
        calls = dataset.table("calls", ["call_id", "parent_call_id", "module_id", "inputs", "kwargs"])
        ids = np.asarray(calls.column("call_id"))
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]
        self._parent = self.row_of(_ids(calls, "parent_call_id"))
        names = named(dataset.table("modules", ["path"]).column("path").to_pylist())
        # Modules of several roots can come to have one name.
        paths, code = np.unique(np.array(names, dtype=object), return_inverse=True)
        module = code[np.asarray(calls.column("module_id"))].astype(np.int64)
        text = _shapes(calls) if shapes else pa.array([None] * len(ids), pa.string())
        said = text.dictionary_encode()
        shape = np.asarray(said.indices.fill_null(-1)).astype(np.int64)
        keys, self._key = np.unique(module * (len(said.dictionary) + 1) + shape + 1, return_inverse=True)
        key_module, key_shape = np.divmod(keys, len(said.dictionary) + 1)
        self._key_path = paths[key_module]
        self._key_shapes = np.array([None, *said.dictionary.to_pylist()], dtype=object)[key_shape]

    def row_of(self, ids: Ints) -> Ints:
        """The row of every call by its id, or -1."""
        if not self._sorted.size:
            return np.full(ids.size, -1)
        at = np.minimum(np.searchsorted(self._sorted, ids), self._sorted.size - 1)
        return np.where(self._sorted[at] == ids, self._order[at], -1)

    def subtrees(self, work: _Work) -> pd.DataFrame:
        """Times of every module and shape, with all that was called inside."""
        known = work.call >= 0
        (call, step), (ns, count) = _sums(
            (work.call[known], work.step[known]), (work.ns[known], np.ones(known.sum(), np.int64))
        )
        levels: list[tuple[Ints, ...]] = []
        while call.size:
            levels.append((self._key[call], step, ns, count))
            call = self._parent[call]
            up = call >= 0
            call, step, ns, count = (each[up] for each in (call, step, ns, count))
        key, step, ns, count = (
            np.concatenate(each) for each in (zip(*levels, strict=True) if levels else [[call]] * 4)
        )
        (key, step), (ns, count) = _sums((key, step), (ns, count))
        times = {"step": step, "ns": ns, "kernels": count}
        return pd.DataFrame({**self._said(key), **times})

    def own(self, work: _Work, kinds: pd.DataFrame | None) -> pd.DataFrame:
        """Kernels of every module and shape itself, by name."""
        known = work.at(work.call >= 0)
        return _by_name(known, self._key[known.call], self._said, kinds)

    def _said(self, key: Ints) -> dict[str, object]:
        return {
            "what": np.full(key.size, "module", dtype=object),
            "path": self._key_path[key],
            "shapes": self._key_shapes[key],
        }


def _by_name(
    work: _Work,
    key: Ints,
    said: Callable[[Ints], dict[str, object]],
    kinds: pd.DataFrame | None,
) -> pd.DataFrame:
    """Kernels by key, kind and size of their step, and name."""
    if kinds is None:
        texts, alike = np.array([_ALL_ALIKE], dtype=object), np.zeros(work.step.size, np.int64)
    else:
        code, texts = pd.factorize(kinds["alike"].to_numpy())
        alike = code[kinds.index.get_indexer(pd.Index(work.step))].astype(np.int64)
    name = np.asarray(work.name.indices).astype(np.int64)
    (key, alike, name), (ns, count) = _sums((key, alike, name), (work.ns, np.ones(work.ns.size, np.int64)))
    names = np.array(work.name.dictionary.to_pylist(), dtype=object)
    return pd.DataFrame({**said(key), "alike": texts[alike], "name": names[name], "ns": ns, "kernels": count})


def _whole_steps(work: _Work, kinds: pd.DataFrame | None) -> pd.DataFrame:
    """Times of whole steps by their kind, and again by kind and size where they tell one."""
    (step,), (ns, count) = _sums((work.step,), (work.ns, np.ones(work.ns.size, np.int64)))
    if kinds is None:
        return _frame("step", np.full(step.size, "all", dtype=object), step, ns, count)
    said = kinds.reindex(step)
    whole = _frame("step", said["kind"].to_numpy(), step, ns, count)
    by_size = whole.assign(shapes=said["size"].to_numpy())
    return pd.concat([whole, by_size[by_size["shapes"].notna()]], ignore_index=True)


def _between(work: _Work, kinds: pd.DataFrame) -> pd.DataFrame:
    """Times of work between steps, of every step: 0 where nothing came after it."""
    every = np.asarray(kinds.index, np.int64)
    (step,), (ns, count) = _sums(
        (np.concatenate((work.step, every)),),
        (
            np.concatenate((work.ns, np.zeros(every.size, np.int64))),
            np.concatenate((np.ones(work.ns.size, np.int64), np.zeros(every.size, np.int64))),
        ),
    )
    return _alike(_frame("between", np.full(step.size, _BETWEEN, object), step, ns, count), kinds)


def _own_between(work: _Work, kinds: pd.DataFrame) -> pd.DataFrame:
    def said(key: Ints) -> dict[str, object]:
        values = {"what": "between", "path": _BETWEEN, "shapes": None}
        return {name: np.full(key.size, value, dtype=object) for name, value in values.items()}

    return _by_name(work, np.zeros(work.step.size, np.int64), said, kinds)


def _nobodys(work: _Work) -> pd.DataFrame:
    """Times of work without a module, or without a call."""
    rest = work.call < 0
    (step,), (ns, count) = _sums((work.step[rest],), (work.ns[rest], np.ones(rest.sum(), np.int64)))
    return _frame("unknown", np.full(step.size, _NOBODY, dtype=object), step, ns, count)


def _frame(what: str, path: object, step: Ints, ns: Ints, kernels: Ints) -> pd.DataFrame:
    found = pd.DataFrame({"path": path, "step": step, "ns": ns, "kernels": kernels})
    found.insert(0, "what", pd.Series([what] * len(found), dtype=object))
    found.insert(2, "shapes", pd.Series([None] * len(found), dtype=object))
    return found


def _sums(keys: tuple[Ints, ...], values: tuple[Ints, ...]) -> tuple[list[Ints], list[Ints]]:
    """The distinct combinations of keys, and the sums of each value over them."""
    if not keys[0].size:
        return [np.empty(0, np.int64)] * len(keys), [np.empty(0, np.int64)] * len(values)
    order = np.lexsort(keys[::-1])
    ordered = [key[order] for key in keys]
    new = np.zeros(order.size, dtype=bool)
    new[0] = True
    for key in ordered:
        new[1:] |= key[1:] != key[:-1]
    first = np.flatnonzero(new)
    return [key[first] for key in ordered], [np.add.reduceat(one[order], first) for one in values]


def _ids(table: pa.Table, name: str) -> Ints:
    return np.asarray(table.column(name).cast(pa.int64()).fill_null(-1))


def _shapes(calls: pa.Table) -> pa.Array:
    """The shapes of the tensors that went in, as JSON; those of keywords after the others."""
    inputs = json_text(calls.column("inputs"))
    kwargs = json_text(calls.column("kwargs"))
    empty = pc.fill_null(pc.equal(kwargs, "{}"), fill_value=True)
    both = pc.binary_join_element_wise(pc.fill_null(inputs, "[]"), kwargs, " ")
    return pc.if_else(empty, inputs, both)
