"""The marked run: its steps, and other outermost calls, as sequences of work whose modules are recorded."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit import causes
from tracekit.aligned.signatures import SIZES, Described, Signatures, copy_kinds, signatures_of
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.attribution import ALIGNED
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import Dataset, load
from tracekit.errors import UsageError
from tracekit.markers.base import MODULES, StepMarker
from tracekit.recording.tables import WORK_KINDS
from tracekit.storage.locations import Given, text_of

#: Of more different steps, the most frequent ones are compared.
_MOST_PATTERNS = 256
#: Why work of the marked run has no module, where a cause does not say it.
_UNCLEAR = causes.CAUSES.index(causes.LIKE_UNRECORDED)
_KERNEL_COLUMNS = (
    *("kind", "full_name", "name", "start_ns", "pid", "tid", "correlation_id", "launch_start_ns", "module_id"),
    *("call_id", "method", "cause", "step_id", "copy_kind", "graph_node_id", *SIZES),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Work of one thread: of a step or another outermost call, and what followed it until the next.

    Attributes:
        work: In the order of launches, nodes of CUDA graphs in the order of their numbers.
        module: For each piece the row of its module, or -1.
        cause: Why it has none, as a position in ``causes.CAUSES``; -1 where it has one.
        core: How many pieces are of the step or call itself.
        step: Its marker, if it is a step and this is its thread.
        step_id: Of a step, its id in the dataset; else -1.
    """

    work: Signatures
    module: Rows
    cause: Rows
    core: int
    step: StepMarker | None
    step_id: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A marked run.

    Attributes:
        name: That of its dataset.
        sha256: Digest of the dataset's manifest, which lists the digests of all its tables.
        reports: Digests of the reports in it, by their names.
        modules: The table ``modules``.
        called: Which of them have calls.
        patterns: What ran in it, each sequence once, the most frequent first.
    """

    name: str
    sha256: str
    reports: dict[str, str]
    modules: pa.Table
    called: Flags
    patterns: list[Pattern]


def reference(given: Given) -> Reference:
    """Reads a dataset of a marked run.

    Raises:
        DatasetError: If it is no dataset, or cannot be read.
        UsageError: If its rows are no modules.
    """
    dataset = load(given)
    entries = dataset.manifest.get("reports", [dataset.manifest])
    if any(entry["hierarchy"]["by"] != MODULES for entry in entries):
        raise UsageError(f"{given} is no dataset of a marked run: its rows are not modules")
    modules, calls = dataset.table("modules"), _Calls(dataset)
    called = np.zeros(modules.num_rows, dtype=bool)
    called[calls.module] = True
    return Reference(
        name=dataset.folder.name,
        sha256=hashlib.sha256(text_of(dataset.folder / MANIFEST).encode()).hexdigest(),
        reports={entry["source"]["name"]: entry["source"]["sha256"] for entry in entries},
        modules=modules,
        called=called,
        patterns=_distinct([pattern for part in dataset.by_report() for pattern in _patterns_of(part, calls)]),
    )


class _Calls:
    """The outermost call of every call."""

    def __init__(self, dataset: Dataset) -> None:
        table = dataset.table("calls", ["call_id", "parent_call_id", "module_id"])
        self.id = integers(table, "call_id")
        self.module = integers(table, "module_id")
        row = dict(zip(self.id.tolist(), range(self.id.size), strict=True))
        above = np.array([row.get(one, -1) for one in integers(table, "parent_call_id").tolist()], dtype=np.int64)
        top = np.where(above < 0, np.arange(above.size), above)
        for _ in range(int(top.size).bit_length()):
            top = top[top]
        self.outermost = self.id[top]

    def around(self, call: Ints) -> Ints:
        """The id of the outermost call around each call; -1 for none."""
        order = np.argsort(self.id)
        found = (
            order[np.minimum(np.searchsorted(self.id[order], call), max(0, self.id.size - 1))] if self.id.size else 0
        )
        return np.where(call >= 0, self.outermost[found], -1) if self.id.size else np.full(call.size, -1)


class _Steps(NamedTuple):
    """The steps of a report, by their ids."""

    marker: dict[int, StepMarker]
    tid: dict[int, int]


def _steps_of(dataset: Dataset) -> _Steps:
    rows = dataset.table("steps", ["step_id", "name", "kind", "tid"]).to_pylist()
    marker = {row["step_id"]: StepMarker(row["name"], row["kind"]) for row in rows}
    return _Steps(marker, {row["step_id"]: row["tid"] for row in rows})


def _patterns_of(dataset: Dataset, calls: _Calls) -> Iterator[Pattern]:
    table = dataset.table("kernels", list(_KERNEL_COLUMNS))
    columns = {
        name: integers(table, name) for name in table.column_names if pa.types.is_integer(table.schema.field(name).type)
    }
    launched = columns["launch_start_ns"] >= 0
    line = grouped([columns["pid"], np.where(launched, columns["tid"], -1)]).group
    at = np.where(launched, columns["launch_start_ns"], columns["start_ns"])
    order = np.lexsort((columns["start_ns"], columns["graph_node_id"], at, line))
    columns = {name: values[order] for name, values in columns.items()}
    line = line[order]
    method = labels(table, "method")
    recorded = np.isin(method.code[order], method.of(ALIGNED), invert=True)
    module = np.where(recorded, columns["module_id"], -1)
    cause = np.where(module >= 0, -1, _causes(table)[order])
    work = signatures_of(_described(table.take(pa.array(order)), columns))
    unit = _units(columns, calls)
    steps = _steps_of(dataset)
    for first, core, end in _bounds(line, unit):
        step = int(columns["step_id"][first])
        lead = step >= 0 and steps.tid.get(step) == int(columns["tid"][first])
        yield Pattern(
            work=work.at(slice(first, end)),
            module=module[first:end].astype(np.int32),
            cause=cause[first:end].astype(np.int32),
            core=core - first,
            step=steps.marker[step] if lead else None,
            step_id=step,
        )


def _causes(table: pa.Table) -> Rows:
    cause = labels(table, "cause")
    by_name = {one.name: at for at, one in reversed([*enumerate(causes.CAUSES)])}
    return np.array([*(by_name.get(word, _UNCLEAR) for word in cause.words), _UNCLEAR])[cause.code]


def _described(table: pa.Table, columns: dict[str, Ints]) -> Described:
    kind, name, short, copy = (labels(table, column) for column in ("kind", "full_name", "name", "copy_kind"))
    kinds = np.array([*map(WORK_KINDS.index, kind.words), -1])
    names = [*name.words, *short.words]
    row = np.where(name.code >= 0, name.code, np.where(short.code >= 0, short.code + len(name.words), -1))
    copies = copy_kinds(copy.words)[copy.code]
    return Described(kinds[kind.code], row, copies, [columns[size] for size in SIZES], names)


def _units(columns: dict[str, Ints], calls: _Calls) -> Ints:
    """A number of the step, outermost call or replay that each piece of work is of; -1 between these."""
    step, call = columns["step_id"], calls.around(columns["call_id"])
    replayed = (columns["graph_node_id"] >= 0) & (columns["module_id"] >= 0)
    columns_of_unit = [
        np.where(step >= 0, step, -1),
        np.where((step < 0) & ~replayed, call, -1),
        np.where((step < 0) & replayed, columns["correlation_id"], -1),
    ]
    outside = np.all([column < 0 for column in columns_of_unit], axis=0)
    return np.where(outside, -1, grouped(columns_of_unit).group)


def _bounds(line: Rows, unit: Ints) -> Iterator[tuple[int, int, int]]:
    """Of every pattern its first row, the end of its step or call, and the end of what follows it."""
    inside = np.flatnonzero(unit >= 0)
    if not inside.size:
        return
    begins = np.append(True, (np.diff(unit[inside]) != 0) | (np.diff(line[inside]) != 0))
    first = inside[begins]
    last = np.append(inside[np.flatnonzero(begins)[1:] - 1], inside[-1])
    ends = np.append(np.flatnonzero(np.diff(line)) + 1, line.size)
    end = np.minimum(ends[np.searchsorted(ends, last, side="right")], np.append(first[1:], line.size))
    yield from zip(first.tolist(), (last + 1).tolist(), end.tolist(), strict=True)


def _distinct(patterns: Sequence[Pattern]) -> list[Pattern]:
    times: dict[tuple[bytes, bytes, str], list[Pattern]] = {}
    for pattern in patterns:
        kind = repr(pattern.step and (pattern.step.kind, pattern.core))
        times.setdefault((pattern.work.exact.tobytes(), pattern.module.tobytes(), kind), []).append(pattern)
    most = sorted(times.values(), key=len, reverse=True)[:_MOST_PATTERNS]
    return [alike[0] for alike in most if (alike[0].module >= 0).any()]
