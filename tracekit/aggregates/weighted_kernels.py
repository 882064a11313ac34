"""Device work on one axis of time, and by the modules that it serves, with the weight of each, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import Labels, labels, positions
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.intervals import measured_axis
from tracekit.arrays.slices import union_within
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.causes import OF_COMPILERS
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.errors import DatasetError
from tracekit.schema.tables import KernelModules, Kernels, Modules, Steps

#: Columns of ``kernels``: when the work ran, on which device.
DEVICE_TIMES = ("device", "start_ns", "end_ns")


class Axis(NamedTuple):
    """Device work on one axis that keeps distances; ``line`` is the place in ``lines``, pairs of report and device."""

    line: Rows
    lines: list[tuple[str | None, int | None]]
    start: Ints
    end: Ints


def kernels(dataset: Dataset, columns: Sequence[str]) -> Kernels:
    """Columns of the device work, and its report in a dataset of several; without what a CPU ran to compile."""
    report = [REPORT] if dataset.reports else []
    table = dataset.table("kernels", [*columns, *report])
    if all(row["what"] != OF_COMPILERS for row in dataset.manifest["coverage"]):
        return Kernels(table)
    known = dataset.table("kernels", ["phase", "kind"])
    compiling = pc.and_(pc.equal(known.column("phase"), "compile"), pc.equal(known.column("kind"), "cpu_op"))
    return Kernels(table.filter(pc.invert(pc.fill_null(compiling, fill_value=False))))


def axis(dataset: Dataset, work: Kernels) -> Axis:
    """All of some work, which has the columns :data:`DEVICE_TIMES`, on one axis."""
    devices = np.unique(work.device)
    line = report_codes(dataset, work.table) * devices.size + np.searchsorted(devices, work.device)
    known = [None if device < 0 else device for device in devices.tolist()]
    lines = [(report, device) for report in dataset.names for device in known]
    return Axis(line, lines, *axis_of(dataset, [line, line], [work.start_ns, work.end_ns]))


def axis_of(dataset: Dataset, groups: Sequence[Ints], times: Sequence[Ints]) -> list[Ints]:
    """Times of groups (devices, threads) of a dataset on one axis that keeps distances."""
    placed = measured_axis(groups, times)
    if placed is None:
        number = max(int(group.max(initial=0)) for group in groups) + 1
        problem = f"what its {number} devices or threads did spans more than a century in total"
        raise DatasetError(dataset.folder, problem, "parse the reports again, without the one whose times are damaged")
    return placed


def report_codes(dataset: Dataset, table: pa.Table) -> Rows:
    """The place of each row's report among the dataset's."""
    if not dataset.reports:
        return np.zeros(table.num_rows, dtype=np.int64)
    place, names = {name: at for at, name in enumerate(dataset.reports)}, labels(table, REPORT)
    codes: Rows = np.array([place[name] for name in names.words], dtype=np.int64)[names.code]
    return codes


def names_of(work: pa.Table) -> Labels:
    """For each kernel its name, or its kind if it has none."""
    names, kinds = labels(work, "name"), labels(work, "kind")
    code = np.where(names.code >= 0, names.code, len(names.words) + kinds.code)
    return Labels(code, [*names.words, *kinds.words])


def from_graph(table: pa.Table) -> Flags:
    """Which single kernels ran from a CUDA graph, by ``graph_id`` and ``graph_node_id``."""
    of_graph, of_node = (np.asarray(table.column(name).is_valid()) for name in ("graph_id", "graph_node_id"))
    return np.asarray(of_graph | of_node)


def steps_of(dataset: Dataset, work: Kernels) -> Rows:
    """The row in ``steps`` of each ``step_id``, or -1; a subtree lacks steps that only replayed its graph captures."""
    return positions(work.step_id, dataset.whole.rows(Steps, ["step_id"]).step_id)


def union(group: Rows, start: Ints, end: Ints, groups: int) -> Ints:
    """The length of the union of each group's intervals; group -1 is ignored."""
    kept = group >= 0
    alone = np.full(groups, -1, dtype=np.int64)
    flat = (alone, np.zeros(groups, dtype=np.int64), np.arange(1, groups + 1))
    return union_within(group[kept], flat, start[kept], end[kept])


def weighted_kernels(dataset: Dataset, columns: Sequence[str]) -> Kernels:
    """Columns of the device work, a row per kernel and module that it serves; ``module_id`` and ``dur_ns`` are theirs.

    Of a subtree, they are only the portions of its own modules. The columns include these two.
    """
    shared = shared_kernels(dataset.whole)
    if not len(shared):
        return kernels(dataset, columns)
    work = kernels(dataset.whole, list(dict.fromkeys([*columns, "kernel_id"])))
    return _of_dataset(dataset, divided(work, shared))


def weighted_work(dataset: Dataset, work: Kernels) -> Kernels:
    """The portions of some work of the whole dataset: columns with ``kernel_id``, ``module_id`` and ``dur_ns``."""
    shared = shared_kernels(dataset.whole)
    return _of_dataset(dataset, divided(work, shared) if len(shared) else work)


def served_kernels(dataset: Dataset, columns: Sequence[str]) -> Kernels:
    """Columns of the device work, a row per kernel; of a subtree, kernels that serve it, ``dur_ns`` the part for it."""
    if dataset.root is None:
        return kernels(dataset, columns)
    work = weighted_kernels(dataset, list(dict.fromkeys([*columns, "kernel_id", "module_id", "dur_ns"])))
    first = first_of_kernel(work.kernel_id)
    of_kernel = np.cumsum(first) - 1
    spent = sums(of_kernel, work.dur_ns, int(first.sum()))
    table = work.table.drop_columns("dur_ns").filter(pa.array(first))
    return Kernels(table.append_column("dur_ns", pa.array(spent)))


def divided(work: Kernels, shared: KernelModules) -> Kernels:
    """Device work, a row per kernel and module that it serves; ``shared`` is of :func:`shared_kernels`."""
    kernel = shared.kernel_id
    first = np.flatnonzero(first_of_kernel(kernel))
    row = positions(kernel[first], work.kernel_id)
    here = row >= 0
    size, start = (np.ones(len(work), dtype=np.int64), np.full(len(work), -1, dtype=np.int64))
    size[row[here]], start[row[here]] = np.diff(np.append(first, kernel.size))[here], first[here]
    rows = np.repeat(np.arange(len(work)), size)
    portion = np.flatnonzero(start[rows] >= 0)
    place = portion - (np.cumsum(size) - size)[rows[portion]]
    source = start[rows[portion]] + place
    module, spent = work.module_id[rows].astype(np.int64), work.dur_ns[rows]
    module[portion] = shared.module_id[source]
    weight = np.asarray(shared.weight)[source]
    spent[portion] = _whole_numbers(spent[portion], weight, place == 0)
    own = {"module_id": pa.array(module.astype(np.int32), mask=module < 0), "dur_ns": pa.array(spent)}
    others = work.table.drop_columns(list(own)).take(pa.array(rows))
    names = work.table.column_names
    return Kernels(pa.table([own[name] if name in own else others.column(name) for name in names], names=names))


def first_of_kernel(kernel: Ints) -> Flags:
    """Which portions are the first of their kernel, by the ids of kernels: those of one are adjacent."""
    return np.append(True, kernel[1:] != kernel[:-1])[: kernel.size]


def shared_kernels(dataset: Dataset) -> KernelModules:
    """The rows of ``kernel_modules`` of kernels that serve several modules, by kernel and module."""
    table = dataset.table("kernel_modules", ["kernel_id", "module_id", "weight"])
    return KernelModules(table.filter(pc.less(table.column("weight"), 1.0)))


def _whole_numbers(time: Ints, weight: Floats, first: Flags) -> Ints:
    """The time of each portion, given that of its kernel: its portions are adjacent and add up to that time."""
    start = np.maximum.accumulate(np.where(first, np.arange(time.size), 0))
    running = np.cumsum(weight)
    until = running - (running - weight)[start]
    last = np.append(first[1:], True)[: first.size]
    reached = np.where(last, time, np.minimum(np.rint(until * time).astype(np.int64), time))
    return np.where(first, reached, reached - np.append(0, reached)[:-1])


def _of_dataset(dataset: Dataset, work: Kernels) -> Kernels:
    if dataset.root is None:
        return work
    return work.filter(np.isin(work.module_id, dataset.rows(Modules, ["module_id"]).module_id))


#: The methods of attribution that infer.
INFERRING = ("graph_order", "graph_capture", "graph_launch", "autograd_thread", "aligned")
#: What attribution can be.
KINDS = ("exact", "weighted", "inferred")


class Certainty(NamedTuple):
    """How much work of a report is attributed in one of :data:`KINDS`; ``share`` is of all work, attributed or not."""

    report: int
    kind: str
    pieces: int
    time_ns: int
    share: float


def certainties(dataset: Dataset) -> list[Certainty]:
    """What is attributed, report by report, by how sure that is; kinds that no work has are left out."""
    rows = []
    for at, part in enumerate(dataset.by_report()):
        work = kernels(part, ["kernel_id", "module_id", "method", "dur_ns"])
        kind, whole = np.where(work.module_id >= 0, KINDS.index("exact"), -1), int(work.dur_ns.sum())
        kind[np.isin(work.kernel_id, shared_kernels(part.whole).kernel_id)] = KINDS.index("weighted")
        kind[work.method.among(*INFERRING) & (kind >= 0)] = KINDS.index("inferred")
        number, spent = counts(kind, len(KINDS)).tolist(), sums(kind, work.dur_ns, len(KINDS)).tolist()
        for name, pieces, ns in zip(KINDS, number, spent, strict=True):
            if pieces:
                rows.append(Certainty(at, name, pieces, ns, ns / whole if whole else 0.0))
    return rows


def certainty_of_work(dataset: Dataset) -> dict[str, int]:
    """The time of all attributed work, in nanoseconds, for each of :data:`KINDS`."""
    time = dict.fromkeys(KINDS, 0)
    for row in certainties(dataset):
        time[row.kind] += row.time_ns
    return time
