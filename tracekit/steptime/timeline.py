"""What a report holds of its steps: device work, and what host threads did; and which work waits for which.

It knows nothing of how a step divides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.aggregates.weighted_kernels import from_graph
from tracekit.arrays.codes import labels, positions
from tracekit.arrays.columns import in_order, integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import collectives_in
from tracekit.steptime.windows import Steps, host_spans, host_steps, thread_keys

#: The time of what is not known.
NEVER = np.iinfo(np.int64).min
_KERNELS = (
    *("kernel_id", "kind", "module_id", "step_id", "pid", "tid", "device", "context", "stream", "start_ns", "end_ns"),
    *("collective", "launch_name", "launch_start_ns", "launch_end_ns", "graph_id", "graph_node_id"),
)


class Work(NamedTuple):
    """Device work by line (process and device), start and id."""

    kernel: Ints  # its id
    line: Rows
    step: Ints
    start: Ints
    end: Ints
    copies: Flags  # whether it copies or sets memory
    communicates: Flags
    module: Rows
    thread: Ints  # that of the launch
    launched: Ints
    returned: Ints
    from_replay: Flags


class Spans(NamedTuple):
    """What threads did, from when to when; ``module`` is that of calls, else -1."""

    thread: Ints
    start: Ints
    end: Ints
    module: Rows

    def at(self, rows: Rows | Flags) -> Spans:
        """Some of them."""
        return Spans(*(column[rows] for column in self))

    def moved(self, later: Callable[[Ints, Ints], Ints]) -> Spans:
        """The same with starts and ends that are moved, given their threads."""
        return self._replace(start=later(self.thread, self.start), end=later(self.thread, self.end))

    def on(self, threads: Ints) -> Spans:
        """Those of some threads, by their places."""
        own = self._replace(thread=positions(self.thread, threads))
        return own if (own.thread >= 0).all() else own.at(own.thread >= 0)


class Timeline(NamedTuple):
    """What a report holds of its steps, with the times of its clock."""

    lines: tuple[Ints, ...]  # the processes and devices of the lines
    work: Work
    steps: Steps
    awaited: tuple[Rows, Rows]  # as :func:`awaited_by_streams` has it
    waits: Spans  # when threads blocked
    others: Spans  # when they made calls that neither block nor launch work
    phases: list[Spans]  # when they compiled, and when they loaded data
    calls: Spans  # when they called modules

    def with_work(self, work: Work) -> Timeline:
        """The same with other columns of its work, which is put in order."""
        order, place = np.lexsort((work.kernel, work.start, work.line)), np.empty_like(work.line)
        place[order] = np.arange(order.size)
        first, second = (place[rows] for rows in self.awaited)
        return self._replace(work=Work._make(column[order] for column in work), awaited=(first, second))


def timeline_of(dataset: Dataset, modules: Hierarchy | None) -> Timeline:
    """What a report holds of its steps, with modules if these are given."""
    table, lines, work = work_of(dataset, modules)
    waits = dataset.table("waits", ["pid", "tid", "start_ns", "dur_ns"])
    others = dataset.table("api_calls", ["pid", "tid", "start_ns", "dur_ns", "context", "stream", "kernel_id"])
    calls = NOTHING
    if modules is not None:
        called = dataset.table("calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
        calls = spans_of(called)._replace(module=modules.rows(called))
    awaited = awaited_by_streams(table, others, integers(table, "pid"))
    return Timeline(
        lines, work, host_steps(dataset), awaited, spans_of(waits), spans_of(others), _phases(dataset), calls
    )


def work_of(dataset: Dataset, modules: Hierarchy | None) -> tuple[pa.Table, tuple[Ints, ...], Work]:
    """The kernels, in order; the processes and devices of their lines; and both as work."""
    table = dataset.table("kernels", _KERNELS)
    rows = np.flatnonzero(~labels(table, "kind").among("cpu_op"))
    keys = [integers(table, name)[rows] for name in ("kernel_id", "start_ns", "device", "pid")]
    table = in_order(table, rows[np.lexsort(keys)])
    ids = [integers(table, name).astype(np.int64) for name in ("pid", "device")]
    line, first = grouped(ids)
    kernel, step, start, end = (integers(table, name) for name in ("kernel_id", "step_id", "start_ns", "end_ns"))
    module = (np.full(line.size, -1) if modules is None else modules.rows(table)).astype(np.int32)
    launched, returned = (integers(table, f"launch_{name}_ns", NEVER) for name in ("start", "end"))
    kinds, names = labels(table, "kind"), labels(table, "launch_name")
    replayed = from_graph(table) | np.isin(names.code, names.containing("graphlaunch"))
    replayed &= ~kinds.among("graph")
    work = Work(
        *(kernel, line, step, start, end, kinds.among("memcpy", "memset"), collectives_in(table)),
        *(module, thread_keys(table), launched, returned, replayed),
    )
    return table, tuple(values[first] for values in ids), work


def awaited_by_streams(kernels: pa.Table, calls: pa.Table, process: Ints) -> tuple[Rows, Rows]:
    """For every wait of a stream that is known: the first work launched there later, and the work that it waits for.

    ``process`` is that of each kernel; what waits is of the same one.
    """
    awaited, stream = positions(integers(calls, "kernel_id"), integers(kernels, "kernel_id")), integers(calls, "stream")
    rows = np.flatnonzero((awaited >= 0) & (stream >= 0))
    both = [(integers(calls, name)[rows], integers(kernels, name)) for name in ("context", "stream")]
    group, _ = grouped(
        [np.concatenate(columns).astype(np.int64) for columns in ((process[awaited[rows]], process), *both)]
    )
    time = np.append(integers(calls, "start_ns")[rows], integers(kernels, "launch_start_ns", NEVER))
    by_stream = np.lexsort((time, group))
    # Waits stand before work, so that they come first where both are at one time.
    works = np.where(by_stream < rows.size, time.size, np.arange(time.size))
    place = np.empty(time.size, np.int64)
    place[by_stream] = np.minimum.accumulate(works[::-1])[::-1]
    first = np.append(by_stream, -1)[place[: rows.size]]
    some = (first >= 0) & (group[first] == group[: rows.size])
    return first[some] - rows.size, awaited[rows[some]]


NOTHING = Spans(*np.zeros((4, 0), np.int64))


def _phases(dataset: Dataset) -> list[Spans]:
    """When threads compiled, and when they loaded data."""
    phases = labels(dataset.table("ranges", ["phase"]), "phase")
    if not phases.of("compile", "data").size:
        return [NOTHING, NOTHING]
    table = dataset.table("ranges", ["pid", "tid", "end_tid", "start_ns", "end_ns"])
    ends_here = ~np.asarray(table.column("end_tid").is_valid())
    return [spans_of(table).at(ends_here & phases.among(name)) for name in ("compile", "data")]


def spans_of(table: pa.Table) -> Spans:
    """The rows of a table as what threads did."""
    return Spans(*host_spans(table), np.full(table.num_rows, -1, np.int8))


def waits_of_streams(dataset: Dataset) -> tuple[int, int]:
    """How many waits of streams there are, and of how many it is not known what they wait for."""
    number, unknown = 0, 0
    for part in dataset.by_report():
        calls = part.table("api_calls", ["name", "kernel_id"])
        names = labels(calls, "name")
        known = integers(calls, "kernel_id")[np.isin(names.code, names.containing("streamwaitevent"))] >= 0
        number, unknown = number + known.size, unknown + int((~known).sum())
    return number, unknown
