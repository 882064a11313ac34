"""Which modules are launch-bound: when did the GPU wait for the host?

A call that returned after its work had started may have been blocked: ``.item()``, ``cudaMemcpy``, copies from pageable
memory, any launch under ``CUDA_LAUNCH_BLOCKING``. When the call handed its work to the device is not recorded. If other
work ended on the device during the call, the call's work counts as *queued* behind that work if, at its end, the call
had lasted at least as long as the device still took to start: a call that waits for ten kernels lasts long and its copy
starts at once, while a call that prepares its work lets the device wait.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.spread import Values, ratio
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import DEVICE_TIMES, Axis, axis, from_graph, kernels
from tracekit.arrays.groups import grouped, sums
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import UNKNOWN, Kernels

NAME = "launches"
ANSWER = ("path", "subtree_launch_bound_share", "subtree_waiting_ns", "launches", "launch_ns")

_COLUMNS = (
    *("module_id", "kind", "dur_ns", "pid", "tid", "launch_start_ns", "launch_end_ns", "graph_id", "graph_node_id"),
    *DEVICE_TIMES,
)
_SUMS = ("launches", "launch_ns", "blocked_ns", "gpu_time_ns", "replayed_ns", "launch_bound_ns", "waiting_ns")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Launches by module, the most host time first.

    A launch of a fused kernel counts for the module that the kernel serves most (``kernels.module_id``). Work replayed
    from CUDA graphs has no launch of its own: it counts in ``replayed_ns`` and nowhere else. Work is
    launch-bound if all earlier work on its device had ended before its launch returned and before it started, and if
    it was not queued (see above): the device waited for the host. The first work of a device is launch-bound, too.

    Returns:
        A row per module, and one with a null ``path`` for work that could not be attributed, if there is any:
        ``path``, ``class_name``, ``subtree_launch_bound_share`` (``launch_bound_share`` of the whole subtree),
        ``launches``, ``launch_ns`` (host time in launches, without ``blocked_ns``), ``blocked_ns`` (host time in
        launches during which the device was working on them: from the start of the launch's first work to the return
        of the launch, and if that work was queued, also from the start of the launch to the end of the work before),
        ``gpu_time_ns`` (of the work that they started), ``launch_per_gpu`` (``launch_ns`` divided by ``gpu_time_ns``;
        above 1 the host is slower), ``launch_bound_share`` (of ``gpu_time_ns``), ``launch_bound_ns`` (GPU time of
        launch-bound work), ``waiting_ns`` (how long devices were idle before it was launched), ``queue_median_ns``
        and ``queue_p95_ns`` (from the return of the launch to the start of the work; negative if it started earlier)
        and ``replayed_ns``; then the sums of the whole subtree, named ``subtree_…``.
    """
    modules, delays = hierarchy(dataset), Values()
    count = len(modules.path)
    own = {name: np.zeros(count + 1, np.int64) for name in _SUMS}
    for part in dataset.by_report():
        table = kernels(part.whole, _COLUMNS)
        owner = modules.rows_of(table.module_id)
        in_root = (part.root is None) | (owner >= 0)
        replayed = table.kind.among("graph") | from_graph(table.table)
        launched = in_root & ~replayed & (table.launch_end_ns != UNKNOWN)
        row = np.where(owner < 0, count, owner)
        for name, values in _figures(part.whole, table, launched, replayed & in_root).items():
            own[name] += sums(row, values, count + 1)
        delays.add(row[launched], (table.start_ns - table.launch_end_ns)[launched])
    subtree = {name: np.append(modules.subtree_sums(own[name][:-1]), own[name][-1:]) for name in _SUMS}
    queue = delays.spread(count + 1)
    answer = pd.DataFrame(
        {
            "path": [*modules.path, None],
            "class_name": [*modules.class_name, None],
            "subtree_launch_bound_share": ratio(subtree["launch_bound_ns"], subtree["gpu_time_ns"]),
            **{name: own[name] for name in ("launches", "launch_ns", "blocked_ns", "gpu_time_ns")},
            "launch_per_gpu": ratio(own["launch_ns"], own["gpu_time_ns"]),
            "launch_bound_share": ratio(own["launch_bound_ns"], own["gpu_time_ns"]),
            "launch_bound_ns": own["launch_bound_ns"],
            "waiting_ns": own["waiting_ns"],
            "queue_median_ns": queue.quantile(0.5),
            "queue_p95_ns": queue.quantile(0.95),
            "replayed_ns": own["replayed_ns"],
            **{f"subtree_{name}": values for name, values in subtree.items()},
        }
    )
    unattributed = own["launches"][count] > 0 or own["replayed_ns"][count] > 0
    answer = answer if unattributed else answer.iloc[:count]
    return answer.sort_values("launch_ns", ascending=False, kind="stable", ignore_index=True)


def _figures(dataset: Dataset, table: Kernels, launched: Flags, replayed: Flags) -> dict[str, Ints]:
    time, start = table.dur_ns, table.start_ns
    begun, returned = table.launch_start_ns, table.launch_end_ns
    work = axis(dataset, table)
    reach, any_earlier = _ends(work, table.end_ns, _earlier(work))
    ended, any_ended = _ends(work, table.end_ns, _last_ended(work))
    late, lasted = returned > start, ended - begun
    queued = late & any_ended & (lasted > 0) & (lasted >= start - ended)
    blocked = np.where(late, returned - np.maximum(start, begun), 0) + np.where(queued, lasted, 0)
    until = np.minimum(returned, start)
    bound = launched & (~any_earlier | ((reach < until) & ~queued))
    rows = np.flatnonzero(launched)
    launch = grouped([key[rows] for key in (table.pid, table.tid, begun, returned)])
    first = np.zeros(launched.size, bool)
    first[rows[launch.first]] = True
    return {
        "launches": first.astype(np.int64),
        "launch_ns": np.where(first, returned - begun - blocked, 0),
        "blocked_ns": np.where(first, blocked, 0),
        "gpu_time_ns": np.where(launched, time, 0),
        "replayed_ns": np.where(replayed, time, 0),
        "launch_bound_ns": np.where(bound, time, 0),
        "waiting_ns": np.where(bound & any_earlier, until - reach, 0),
    }


def _earlier(work: Axis) -> Rows:
    """For each kernel, the work that ends last of all that started earlier."""
    order = np.argsort(work.start, kind="stable")
    high = np.maximum.accumulate(work.end[order])
    farthest = np.maximum.accumulate(np.where(work.end[order] == high, np.arange(order.size), 0))
    earlier = np.full(order.size, -1, np.int64)
    earlier[order[1:]] = order[farthest[:-1]]
    return earlier


def _last_ended(work: Axis) -> Rows:
    """For each kernel, the work that ended last before it started."""
    by_end = np.argsort(work.end, kind="stable")
    # Work that took no time has itself ended when it starts.
    itself = (work.end == work.start).astype(np.int64)
    last = np.searchsorted(work.end[by_end], work.start, side="right") - 1 - itself
    ended: Rows = np.append(by_end, -1)[last]
    return ended


def _ends(work: Axis, end: Ints, rows: Rows) -> tuple[Ints, Flags]:
    """The ends of these rows, and which are on the device; the axis shifts each device, and so only compares."""
    same_line: Flags = (rows >= 0) & (work.line[rows] == work.line)
    return np.where(same_line, end[rows], 0), same_line
