"""The times of what is compared, a row for each thing and step; and which steps are alike.

Steps are alike that are of one kind and size, and for long rows of such steps of one place in the row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.weighted_kernels import report_codes
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, distinct, sums_by
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import REPORT, Dataset

#: The columns that name a thing to compare.
KEYS = ["what", "path", "shapes"]
#: Their description of one; its shapes are empty where they are not distinguished.
Key: TypeAlias = tuple[str, str, str]

#: Types of the columns of :class:`KeyRows`.
_STORED = (np.int32, np.int32, np.int64, np.int32)
#: How many rows of both runs are judged at a time.
_MOST_ROWS = 1 << 17
_SIZES = ("batch_size", "tokens")
#: The columns of ``steps`` that distinguish steps.
PROPERTIES = frozenset(("kind", *_SIZES))
#: The kind of steps whose kind is unknown.
STEP = "step"
_TRAIN = "train"
#: So many steps in a row have nearly the same context; what divides their number from the text before it.
_BLOCK, BLOCK_MARK = 16, "\0"
_NO_SIZE = "{}"


class KeyTimes(NamedTuple):
    """The times of things, a row per thing and step in which it had work; of modules, those of their subtrees.

    ``key`` and ``alike`` are places in ``keys``, some of which may have no rows, and in ``alikes``: texts that are
    equal for steps of like kind and size. Both are sorted, and those of all runs that are compared.
    """

    keys: Sequence[Key]
    alikes: Sequence[str]
    key: Rows
    alike: Rows
    ns: Ints
    kernels: Ints

    def present_keys(self) -> set[Key]:
        """The things that have rows."""
        return {self.keys[at] for at in np.unique(self.key).tolist()}

    def of(self, wanted: Callable[[Key], bool]) -> KeyTimes:
        """The rows of some things."""
        kept = np.array([wanted(key) for key in self.keys], bool)[self.key]
        return self if kept.all() else self.at(np.flatnonzero(kept))

    def at(self, rows: Rows) -> KeyTimes:
        """Some of the rows."""
        return KeyTimes(self.keys, self.alikes, *(column[rows] for column in self[2:]))

    def followed_by(self, more: KeyTimes) -> KeyTimes:
        """These rows and others."""
        columns = (np.concatenate(parts) for parts in zip(self[2:], more[2:], strict=True))
        return KeyTimes(self.keys, self.alikes, *columns)


def in_blocks(before: KeyTimes, after: KeyTimes) -> Iterator[tuple[KeyTimes, KeyTimes]]:
    """The times of two runs, those of some things at a time, in the order of their keys; at least one block."""
    sides = before, after
    ordered = [np.argsort(times.key, kind="stable").astype(np.int32) for times in sides]
    starts = [np.append(0, np.cumsum(counts(times.key, len(times.keys)))) for times in sides]
    block = (starts[0] + starts[1])[1:] // _MOST_ROWS
    borders = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(before.keys)]
    for low, high in pairwise(borders):
        first, second = (
            times.at(rows[start[low] : start[high]]) for times, rows, start in zip(sides, ordered, starts, strict=True)
        )
        yield first, second


class Met:
    """Things, texts of like steps and names of kernels, numbered in the order in which all reports had them."""

    def __init__(self) -> None:
        self._place: dict[Key, int] = {}
        self.alikes, self.kernels = Words(), Words()

    def codes(self, what: str, paths: Sequence[str], shapes: Sequence[str | None], at: Rows) -> Rows:
        """The number of the thing of each row, given what things are, their paths and shapes, and which a row is of."""
        used, place = distinct(at)
        keys = ((what, paths[one], shapes[one] or "") for one in used.tolist())
        return np.array([self._place.setdefault(key, len(self._place)) for key in keys], np.int64)[place]

    def sorted(self) -> Sorted:
        """All of them in their order."""
        keys, alikes = [*self._place], self.alikes.all()
        orders = [sorted(range(len(texts)), key=texts.__getitem__) for texts in (keys, alikes)]
        places = (np.argsort(np.array(order, np.int64)) for order in orders)
        return Sorted([keys[at] for at in orders[0]], [alikes[at] for at in orders[1]], *places)


class Sorted(NamedTuple):
    """Things and texts of like steps in their order, and the place there of each number."""

    keys: list[Key]
    alikes: list[str]
    key: Rows
    alike: Rows


class KeyRows:
    """Rows of things and steps of all reports so far."""

    def __init__(self) -> None:
        self._columns: list[list[Ints]] = [[np.empty(0, dtype)] for dtype in _STORED]

    def add(self, *columns: Ints) -> None:
        """Adds those of a report: numbers of things and of texts of steps, times and numbers of kernels."""
        for stored, column, dtype in zip(self._columns, columns, _STORED, strict=True):
            stored.append(column.astype(dtype))

    def times(self, names: Sorted, *, one_step: bool) -> KeyTimes:
        """All of them, which can be asked for once; a single row for each thing where all reports are one step."""
        # One column after the other is put together and given back, so that memory never holds all of them twice.
        columns = [np.concatenate(self._columns.pop(0)) for _ in _STORED]
        for at, place in enumerate((names.key, names.alike)):
            columns[at] = place.astype(np.int32)[columns[at]]
        if one_step:
            found, sums = sums_by(columns[:2], [column.astype(np.int64) for column in columns[2:]])
            columns = [*found, *sums]
        return KeyTimes(names.keys, names.alikes, *columns)


def common_properties(*datasets: Dataset) -> frozenset[str]:
    """The properties that steps of every dataset have: ``kind``, ``batch_size``, ``tokens``."""
    found = PROPERTIES
    for dataset in datasets:
        tables = (part.table("steps", [*PROPERTIES]) for part in dataset.by_report())
        found &= {name for table in tables for name in PROPERTIES if table.column(name).null_count < table.num_rows}
    return found


def step_kinds(dataset: Dataset, properties: frozenset[str], *, places: bool = False) -> pd.DataFrame:
    """By ``step_id`` kind, size as JSON or null, and ``alike``: the same text for steps that can be compared.

    With places, only steps are that come as late in a row of like steps, as attention grows with the context; but those
    of trainings.
    """
    steps = dataset.table("steps", ["step_id", "kind", *_SIZES, "pid", "start_ns"]).to_pydict()
    kinds = [kind or STEP for kind in steps["kind"]]
    names = [name for name in _SIZES if name in properties]
    sizes = [
        json.dumps({name: number for name in names if (number := steps[name][row]) is not None})
        for row in range(len(kinds))
    ]
    alike = [f"{kind if 'kind' in properties else STEP} {size}" for kind, size in zip(kinds, sizes, strict=True)]
    if places:
        blocks = _blocks(alike, steps["pid"], steps["start_ns"])
        for row, block in enumerate(blocks):
            if block and kinds[row] != _TRAIN:
                alike[row] += f"{BLOCK_MARK}{block}"
    rows = {"kind": kinds, "size": [None if size == _NO_SIZE else size for size in sizes], "alike": alike}
    return pd.DataFrame(rows, index=pd.Index(steps["step_id"], dtype="int64"), dtype=object)


def _blocks(alike: Sequence[str], pid: Sequence[int], start_ns: Sequence[int]) -> list[int]:
    """The place of each step in the row of like steps of its process, in blocks."""
    place, blocks = 0, [0] * len(alike)
    order = sorted(range(len(alike)), key=lambda step: (pid[step], start_ns[step]))
    for before, step in pairwise([-1, *order]):
        same = before >= 0 and (alike[before], pid[before]) == (alike[step], pid[step])
        place = place + 1 if same else 0
        blocks[step] = place // _BLOCK
    return blocks


def step_before(dataset: Dataset, work: pa.Table) -> Ints:
    """For each kernel the last step of its process that started before its launch, or -1."""
    steps = dataset.table("steps", ["step_id", "start_ns", "pid", *([REPORT] if dataset.reports else [])])
    process, of_step = ((report_codes(dataset, one) << 32) | integers(one, "pid") for one in (work, steps))
    launched = np.asarray(pc.coalesce(work.column("launch_start_ns"), work.column("start_ns")))
    ids, starts = integers(steps, "step_id"), integers(steps, "start_ns")
    before = np.full(launched.size, -1, np.int64)
    for one in np.unique(process).tolist():
        own = np.flatnonzero(of_step == one)
        own = own[np.argsort(starts[own], kind="stable")]
        rows = np.flatnonzero(process == one)
        before[rows] = np.append(ids[own], -1)[np.searchsorted(starts[own], launched[rows], side="right") - 1]
    return before


def step_name(alike: str) -> str:
    """Steps of like kind and size in words: ``decode of batch_size 8, tokens 8``."""
    kind, _, size = alike.partition(" ")
    parts = ", ".join(f"{name} {number:,}" for name, number in json.loads(size).items())
    return f"{kind} of {parts}" if parts else kind
