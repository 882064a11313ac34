"""What host threads did in a step: calls of modules, and calls of CUDA's API that launch work, wait or block."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.subtrees import Hierarchy
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import nesting_order, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.views.page import limits

_NEVER = np.iinfo(np.int64).min
#: How deep calls are drawn inside each other.
_DEEPEST = 15


class Host(NamedTuple):
    """Calls on threads, in columns; ``name`` is -1 of calls of modules, ``thread`` is an index into ``threads``.

    ``depth`` is how many calls of the thread are around one, ``launch`` is, for each kernel of the step, the call that
    launched it, or -1; ``calls`` counts them with those that are not drawn.
    """

    start: Ints
    end: Ints
    thread: Rows
    depth: Ints
    module: Rows
    name: Rows
    threads: list[tuple[int, int]]
    launch: Rows
    calls: int


class _Spans(NamedTuple):
    start: Ints
    end: Ints
    pid: Ints
    tid: Ints
    module: Rows
    name: Rows

    def of(self, rows: Rows | Flags) -> "_Spans":
        return _Spans(*(column[rows] for column in self))


class HostCalls:
    """The calls of one report, which are read if :meth:`of_step` is asked for."""

    def __init__(self, dataset: Dataset, modules: Hierarchy, names: Words) -> None:
        self._dataset, self._modules, self._names = dataset, modules, names
        self._is_read = False

    def _read(self) -> None:
        dataset, names = self._dataset, self._names
        self._is_read = True
        self._work = dataset.table("kernels", ["launch_name", "launch_start_ns", "launch_end_ns", "pid", "tid"])
        calls = dataset.table("calls", ["start_ns", "end_ns", "pid", "tid", "module_id", "step_id"])
        self._calls = _spans(calls, self._modules.rows(calls), None)
        self._step = integers(calls, "step_id")
        columns, whole = ["name", "pid", "tid", "start_ns", "dur_ns"], dataset.whole
        others = [whole.table(name, columns) for name in ("waits", "api_calls")]
        spans = [_spans(table, None, names.codes(labels(table, "name"))) for table in others]
        self._others = _Spans(*(np.concatenate(column) for column in zip(*spans, strict=True)))

    def of_step(self, step_id: int, rows: Rows, module: Rows) -> Host:
        """What was called in a step, and the launches of its work: these rows of ``kernels``, with their modules."""
        if not self._is_read:
            self._read()
        work = self._work.take(pa.array(rows))
        launches = self._launches(work, module)
        called = self._calls.of(self._step == step_id)
        whole = _Spans(*(np.concatenate(column) for column in zip(called, launches, strict=True)))
        if not whole.start.size:
            return _drawn(whole, np.full(work.num_rows, -1), np.zeros(0, np.int64))
        inside = (self._others.start >= whole.start.min()) & (self._others.start < whole.end.max())
        inside &= np.isin(_thread(self._others), _thread(whole))
        whole = _Spans(*(np.concatenate(column) for column in zip(whole, self._others.of(inside), strict=True)))
        # A call can start several kernels, and one that blocks is among the waits, too; calls of modules stay apart.
        call = np.arange(whole.start.size)
        call[called.start.size :] = -1
        key, first = grouped((_thread(whole), whole.start, whole.name, call))
        of_work = np.full(work.num_rows, -1)
        launched = np.flatnonzero(integers(work, "launch_start_ns", _NEVER) != _NEVER)
        of_work[launched] = key[called.start.size : called.start.size + launched.size]
        return _drawn(whole.of(first), of_work, whole.end[first] - whole.start[first])

    def _launches(self, work: pa.Table, module: Rows) -> _Spans:
        start, end = (integers(work, f"launch_{name}_ns", _NEVER) for name in ("start", "end"))
        pid, tid = (integers(work, name).astype(np.int64) for name in ("pid", "tid"))
        return _Spans(start, end, pid, tid, module, self._names.codes(labels(work, "launch_name"))).of(start != _NEVER)


def _spans(table: pa.Table, module: Rows | None, name: Rows | None) -> _Spans:
    start, pid, tid = (integers(table, column).astype(np.int64) for column in ("start_ns", "pid", "tid"))
    end = integers(table, "end_ns") if name is None else start + integers(table, "dur_ns")
    none = np.full(start.size, -1, np.int64)
    return _Spans(start, end, pid, tid, none if module is None else module, none if name is None else name)


def _thread(spans: _Spans) -> Ints:
    return (spans.pid << 32) | (spans.tid & 0xFFFF_FFFF)


def _drawn(spans: _Spans, launch: Rows, length: Ints) -> Host:
    """The longest calls, with those that launched a kernel, as many as there is room for."""
    launches = np.isin(np.arange(length.size), launch)
    shown = np.sort(np.lexsort((-length, ~launches))[: limits.HOST_CALLS])
    place = np.full(length.size + 1, -1)
    place[shown] = np.arange(shown.size)
    kept = spans.of(shown)
    thread, first = grouped((kept.pid, kept.tid))
    threads = list(zip(kept.pid[first].tolist(), kept.tid[first].tolist(), strict=True))
    depth = _depth(spans)[shown]
    return Host(kept.start, kept.end, thread, depth, kept.module, kept.name, threads, place[launch], length.size)


def _depth(spans: _Spans) -> Ints:
    """How many calls of the thread are around each: also those for which there is no room."""
    thread, first = grouped((spans.pid, spans.tid))
    depth = np.zeros(thread.size, np.int64)
    for at in range(first.size):
        rows = np.flatnonzero(thread == at)
        rows = rows[nesting_order(spans.start[rows], spans.end[rows])]
        depth[rows] = np.minimum(parents(spans.start[rows], spans.end[rows])[1], _DEEPEST)
    return depth
