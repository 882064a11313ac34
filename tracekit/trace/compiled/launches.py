"""Ranges around runs of compiled graphs, the kernel maps of these graphs, and what each run launched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import firsts, innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.captures import Origins
from tracekit.markers.base import CompiledGraphMarker, KernelMapMarker, MappedKernel, Marker
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import KERNEL, Recording
from tracekit.trace.calls.calls import Calls
from tracekit.trace.decoding import Decoded
from tracekit.trace.hierarchy.mapped_modules import NO_MAP, MappedRuns
from tracekit.trace.launching import Launched
from tracekit.trace.operators import Operators, operator_ranges

#: API calls that launch a kernel each, and so certainly put work on the device or into a graph.
_LAUNCHES_KERNELS = re.compile(r"(cuda|cu|hip)(Module)?Launch(Cooperative)?Kernel")

#: API calls that copy or set memory: the device does it, unless there is nothing to do.
_COPIES = re.compile(r"(cuda|cu|hip)Mem(cpy|set)")


class Captured(NamedTuple):
    """Launches that went into CUDA graphs, and for every kernel the one that it is replayed from, or -1."""

    launch: Rows
    rows: Rows


class OwnLaunches(NamedTuple):
    """Launches that runs made themselves, by run and then by time.

    Attributes:
        unit: Launches of one number are one kernel's: inside one operator, or one inside the other.
        name: For every unit the number of its name in ``names``; -1 if it has none.
    """

    row: Rows
    run: Rows
    unit: Rows
    name: Ints
    first: Rows
    names: list[str]


def captured(origins: Origins, of_work: Rows, axis: ThreadAxis, rows: Rows) -> Captured:
    """What was captured, given the node of every kernel, or -1, and the rows of all captured launches."""
    launch = np.full(origins.start.size, -1, dtype=np.int64)
    # Any launch of the module may be the one: which kernel of a map it was is not known.
    known = np.flatnonzero(origins.certain)
    if known.size and axis.launch_start.size:
        at = np.searchsorted(axis.launch_start, origins.start[known])
        at = np.minimum(at, axis.launch_start.size - 1)
        launch[known] = np.where(axis.launch_start[at] == origins.start[known], at, -1)
    return Captured(lookup(launch, of_work), rows)


def run_around(runs: Runs, axis: ThreadAxis, calls: Calls, call_at_launch: Rows) -> Rows:
    """For every launch the run that made it itself, with no call or other run further inside; or -1."""
    run = innermost(runs.start, runs.end, runs.parent, axis.launch_start, axis.launch_end)
    inner, around = lookup(calls.start, call_at_launch), lookup(runs.start, run)
    same = (inner == around) & (lookup(calls.end, call_at_launch) < lookup(runs.end, run))
    # A call of the same extent is around its run.
    return np.where((call_at_launch >= 0) & ((inner > around) | same), -1, run)


def own_launches(
    recording: Recording, axis: ThreadAxis, operators: Operators, runs: Runs, run: Rows, works: tuple[Ints, Flags]
) -> OwnLaunches:
    """Finds the launches of runs, given the run of every launch, or -1, and its :func:`names_of_launches`."""
    name, useful = works
    rows = np.flatnonzero((run >= 0) & useful)
    rows = rows[np.argsort(run[rows], kind="stable")]
    of_run = run[rows]
    around, texts = _operator_around(recording, axis, operators, runs, (rows, of_run))
    fresh = _begins(axis.launch_end[rows], of_run, around)
    first = np.flatnonzero(fresh)
    operator = operators.of_text[lookup(texts, around[first])]
    unit_name = np.where(operator >= 0, operator + len(recording.names), name[rows[first]])
    names = [*recording.names, *(item.name for item in operators.distinct)]
    return OwnLaunches(rows, of_run, np.cumsum(fresh) - 1, unit_name, first, names)


def names_of_launches(recording: Recording, launched: Launched, captures: Captured) -> tuple[Ints, Flags]:
    """For every launch the name of its work, or -1; and which put work on the device or into a graph."""
    launches = len(recording.launches)
    name, works = np.full(launches, -1, dtype=np.int64), np.zeros(launches, dtype=bool)
    works[captures.rows] = True
    # A call that launches kernels did so, even if the report lost them.
    launching = [row for row, text in enumerate(recording.call_names) if _LAUNCHES_KERNELS.match(text)]
    works[np.isin(recording.launches.name, launching)] = True
    works[launched.launch[launched.replayed & (launched.launch >= 0)]] = False
    own = np.where(launched.replayed, captures.launch, launched.launch)
    rows = np.flatnonzero(own >= 0)
    works[own[rows]] = True
    kernel = recording.work.kind[rows] == KERNEL
    # If one launch put several things on the device, the name is that of the kernel.
    for chosen in (rows[~kernel], rows[kernel]):
        name[own[chosen]] = recording.work.name[chosen]
    return name, works


def with_losses(recording: Recording, launched: Launched, captures: Captured, own: OwnLaunches) -> Rows:
    """The runs of which the report may not hold all launches: ids are missing among those of their launches.

    Ids of launches count up in each process. Where captured launches are missing is not known.
    """
    launches, work = recording.launches, recording.work
    ids = launches.correlation_id
    thread, process = launches.thread, work.process
    kernel = (work.kind == KERNEL) & (process >= 0)
    lost = kernel & (launched.launch < 0) & ~launched.replayed
    unmapped = np.unique(process[kernel & launched.replayed & (captures.launch < 0)])
    first = np.flatnonzero(np.append(True, own.run[1:] != own.run[:-1])[: own.run.size])
    last = np.append(first[1:], own.run.size)[: first.size] - 1
    before, after = own.row[first] - 1, own.row[last] + 1
    of_run = recording.threads.process[thread[own.row[first]]]
    low = np.where(_same(thread, before, own.row[first]), ids[before], np.iinfo(np.int64).min)
    high = np.where(_same(thread, after, own.row[last]), ids[after % ids.size], np.iinfo(np.int64).max)
    doubtful = np.isin(of_run, unmapped) & np.isin(own.row[first], captures.rows)
    for number in np.unique(process[lost]).tolist():
        missing = np.sort(work.correlation_id[lost & (process == number)])
        between = np.searchsorted(missing, high) > np.searchsorted(missing, low, side="right")
        doubtful |= between & (of_run == number)
    return own.run[first[doubtful]]


def with_copies_lost(recording: Recording, run: Rows, works: Flags) -> Rows:
    """The runs that copied or set memory, of which the report holds no work: their launches cannot be counted."""
    copying = [row for row, text in enumerate(recording.call_names) if _COPIES.match(text)]
    return np.unique(run[(run >= 0) & ~works & np.isin(recording.launches.name, copying)])


def with_work_inside(runs: Runs, calls: Calls) -> Rows:
    """The runs with calls or other runs inside: what these launch is not theirs, but a kernel of theirs called them."""
    run = innermost(runs.start, runs.end, runs.parent, calls.start, calls.end)
    inner = (calls.start > lookup(runs.start, run)) | (calls.end < lookup(runs.end, run))
    return np.unique(np.concatenate([run[(run >= 0) & inner], runs.parent[runs.parent >= 0]]))


def _same(thread: Ints, row: Rows, other: Rows) -> Flags:
    inside = (row >= 0) & (row < thread.size)
    return np.asarray(inside & (thread[row % thread.size] == thread[other]))


def _operator_around(
    recording: Recording, axis: ThreadAxis, operators: Operators, runs: Runs, inside: tuple[Rows, Rows]
) -> tuple[Rows, Rows]:
    rows, run = inside
    ranges = operator_ranges(recording, axis, operators)
    of_run = innermost(runs.start, runs.end, runs.parent, ranges.start, ranges.end)
    same = (ranges.parent >= 0) & (lookup(of_run, ranges.parent) == of_run)
    outermost = firsts(np.where(same, ranges.parent, -1))
    around = innermost(ranges.start, ranges.end, ranges.parent, axis.launch_start[rows], axis.launch_end[rows])
    return np.where(lookup(of_run, around) == run, lookup(outermost, around), -1), ranges.text


def _begins(end: Ints, run: Rows, operator: Rows) -> Flags:
    """Which launches are not of the same kernel as the one before: nor inside one before, nor in the same operator."""
    fresh = np.ones(run.size, dtype=bool)
    if bool((end[1:] > end[:-1]).all()) and not (operator >= 0).any():
        return fresh
    (end,) = one_axis([run], [end])
    nested = end[1:] <= np.maximum.accumulate(end)[:-1]
    same_run = run[1:] == run[:-1]
    fresh[1:] = ~(nested | (same_run & (operator[1:] >= 0) & (operator[1:] == operator[:-1])))
    return fresh


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of compiled graphs on all threads, by (start, -end) on the axis.

    Attributes:
        parent: The run around each, or -1.
        cut: Whether its end is not recorded, so that it may not have launched all of its kernels.
        graphs: What distinguishes the graphs: the ids of their maps, and the modules that were compiled.
    """

    range_row: Rows
    start: Ints
    end: Ints
    parent: Rows
    process: Rows
    start_ns: Ints
    graph: Rows
    cut: Flags
    graphs: list[CompiledGraphMarker]
    maps: dict[str, KernelMap]

    @property
    def mapped(self) -> Flags:
        """Which belong to a graph whose map is known."""
        return np.array([*(marker.map_id in self.maps for marker in self.graphs), False])[self.graph]

    def only(self, rows: Flags) -> Runs:
        """Some of them."""
        names = ("range_row", "start", "end", "process", "start_ns", "graph", "cut")
        columns = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **columns, parent=parents(columns["start"], columns["end"])[0])

    @property
    def mapped_runs(self) -> MappedRuns:
        """What the hierarchy has to know of them."""
        maps = [self.maps.get(marker.map_id, KernelMap("", (), ())) for marker in self.graphs]
        pairs = zip(self.graphs, maps, strict=True)
        roots = [own.root if marker.root is None else marker.root for marker, own in pairs]
        paths = [own.paths for own in maps]
        graph = np.where(self.mapped, self.graph, NO_MAP)
        return MappedRuns(self.start, self.end, self.process, self.start_ns, graph, roots, paths)


def runs_of(recording: Recording, decoded: Decoded, axis: ThreadAxis, ends: Ints) -> Runs:
    """Finds the runs. What ran inside a range that ended on another thread is not known."""
    numbers: dict[CompiledGraphMarker, int] = {}
    graph = [
        numbers.setdefault(item, len(numbers)) if isinstance(item, CompiledGraphMarker) else -1 for item in decoded.bare
    ]
    rows = np.flatnonzero(decoded.ranges(recording, CompiledGraphMarker) & axis.ends_here)
    rows = rows[nesting_order(axis.range_start[rows], ends[rows])]
    start, end = axis.range_start[rows], ends[rows]
    return Runs(
        range_row=rows,
        start=start,
        end=end,
        parent=parents(start, end)[0],
        process=recording.threads.process[recording.ranges.thread[rows]],
        start_ns=recording.ranges.start_ns[rows],
        graph=np.array(graph, dtype=np.int64)[decoded.canonical_marker[decoded.of_text[recording.ranges.text[rows]]]],
        cut=recording.ranges.open[rows],
        graphs=list(numbers),
        maps=maps_of(decoded.bare) if numbers else {},
    )


class KernelMap(NamedTuple):
    """The kernels that one run of a compiled graph launches, in order.

    Attributes:
        root: Path of the module that was compiled, or its class.
        paths: The distinct paths of modules below the root, in the order of the kernels.
    """

    root: str
    kernels: tuple[MappedKernel, ...]
    paths: tuple[str, ...]


def maps_of(markers: Iterable[Marker]) -> dict[str, KernelMap]:
    """The maps by their ids; those that lack a part, or whose parts contradict each other, are left out.

    A map is the digest of its content, so any process may record it for all.
    """
    parts_of: dict[str, set[KernelMapMarker]] = {}
    for marker in markers:
        if isinstance(marker, KernelMapMarker):
            parts_of.setdefault(marker.map_id, set()).add(marker)
    maps = {}
    for map_id, unordered in parts_of.items():
        parts = sorted(unordered, key=lambda part: part.part)
        whole = [part.part for part in parts] == list(range(1, parts[0].parts + 1))
        if whole and len({(part.parts, part.root) for part in parts}) == 1:
            kernels = tuple(kernel for part in parts for kernel in part.kernels)
            paths = dict.fromkeys(path for kernel in kernels for path, _ in kernel.modules)
            maps[map_id] = KernelMap(parts[0].root, kernels, tuple(paths))
    return maps
