"""What launching cost the host, against what it started: whose work the GPU had to wait for.

A call that returned after its work had begun may have been blocked: ``.item()``, ``cudaMemcpy``, copies from pageable
memory, any launch under ``CUDA_LAUNCH_BLOCKING``. When within the call it handed its work to the device is not
recorded. If other work ended on the device while the call ran, the work counts as *queued* behind that where the call
had lasted at least as long by then as the device still took to begin: a call that waits for ten kernels lasts long and
its copy begins at once, a call that prepares its work lets the device wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.devices import WHERE, axis, from_graph, kernels, report_codes
from tracekit.analyses.spread import ratio, spread
from tracekit.analyses.subtrees import hierarchy, integers, summed
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.devices import Axis
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

NAME = "launches"

_COLUMNS = (
    "module_id",
    "kind",
    "dur_ns",
    "pid",
    "tid",
    "launch_start_ns",
    "launch_end_ns",
    "graph_id",
    "graph_node_id",
    *WHERE,
)
_SUMS = (
    "launches",
    "launch_ns",
    "blocked_ns",
    "gpu_time_ns",
    "replayed_ns",
    "launch_bound_ns",
    "waiting_ns",
)


def frame(dataset: Dataset) -> pd.DataFrame:
    """Launches by module, the most host time first.

    Work replayed from CUDA graphs has no launch of its own: it is ``replayed_ns`` and nothing else here. Work is
    launch-bound if all earlier work on its device had ended before its launch returned and before it began, and it was
    not queued (see above): the device waited for the host. The first work of a device is, too.

    Returns:
        A row per module, and one with a null ``path`` for work that no module owns, if there is some: ``path``,
        ``class_name``, ``inclusive_launch_bound_share`` (``launch_bound_share`` of the whole subtree), ``launches``,
        ``launch_ns`` (host time in them, without ``blocked_ns``), ``blocked_ns`` (host time in them in which the
        device was at it: from the start of the launch's first work to the launch's return, and, if that was queued,
        also from the launch's begin to the end of the work before), ``gpu_time_ns`` (of what they started),
        ``launch_per_gpu`` (``launch_ns`` by ``gpu_time_ns``; above 1 the host is slower), ``launch_bound_share`` (of
        ``gpu_time_ns``), ``launch_bound_ns`` (GPU time of launch-bound work), ``waiting_ns`` (for how long devices
        stood idle before it was launched), ``queue_median_ns`` and ``queue_p95_ns`` (from the launch's return to the
        start; negative if it started before), ``replayed_ns``; then the sums of the whole subtree,
        named ``inclusive_…``.
    """
    whole = dataset.whole
    table, modules = kernels(whole, _COLUMNS), hierarchy(dataset)
    owner = modules.rows(table)
    asked = np.ones(owner.size, bool) if dataset.root is None else owner >= 0
    replayed = _replayed(table)
    launched = asked & ~replayed & np.asarray(table.column("launch_end_ns").is_valid())
    values = _values(whole, table, launched, replayed & asked)
    count = len(modules.path)
    place = np.where(owner < 0, count, owner)
    own = {name: summed(place, values[name], count + 1) for name in _SUMS}
    queue = integers(table, "start_ns") - integers(table, "launch_end_ns", missing=0)
    delays = spread(place[launched], queue[launched], count + 1)
    answer = pd.DataFrame(
        {
            "path": [*modules.path, None],
            "class_name": [*modules.class_name, None],
            "inclusive_launch_bound_share": ratio(
                *(_inclusive(modules, own[name]) for name in ("launch_bound_ns", "gpu_time_ns"))
            ),
            "launches": own["launches"],
            "launch_ns": own["launch_ns"],
            "blocked_ns": own["blocked_ns"],
            "gpu_time_ns": own["gpu_time_ns"],
            "launch_per_gpu": ratio(own["launch_ns"], own["gpu_time_ns"]),
            "launch_bound_share": ratio(own["launch_bound_ns"], own["gpu_time_ns"]),
            "launch_bound_ns": own["launch_bound_ns"],
            "waiting_ns": own["waiting_ns"],
            "queue_median_ns": delays.quantile(0.5),
            "queue_p95_ns": delays.quantile(0.95),
            "replayed_ns": own["replayed_ns"],
            **{f"inclusive_{name}": _inclusive(modules, own[name]) for name in _SUMS},
        }
    )
    outside = own["launches"][count] > 0 or own["replayed_ns"][count] > 0
    answer = answer if outside else answer.iloc[:count]
    return answer.sort_values("launch_ns", ascending=False, kind="stable", ignore_index=True)


def _inclusive(modules: Hierarchy, own: Ints) -> Ints:
    """The sums of subtrees; the last entry is of no module and stays what it is."""
    return np.append(modules.inclusive(own[:-1]), own[-1:])


def _replayed(table: pa.Table) -> Flags:
    kinds = labels(table, "kind")
    whole: Flags = np.isin(kinds.code, kinds.of("graph"))
    return whole | from_graph(table)


def _values(dataset: Dataset, table: pa.Table, launched: Flags, replayed: Flags) -> dict[str, Ints]:
    """What each piece of work adds to the sums of its module."""
    time, on = integers(table, "dur_ns"), axis(dataset, table)
    start = integers(table, "start_ns")
    begun, returned = (integers(table, f"launch_{name}_ns", missing=0) for name in ("start", "end"))
    before = _before(on, integers(table, "end_ns"))
    blocked, queued = _blocked(before, start, begun, returned)
    until = np.minimum(returned, start)
    bound = launched & (before.none | ((before.reach < until) & ~queued))
    first = _first_of_launch(dataset, table, launched)
    return {
        "launches": first.astype(np.int64),
        "launch_ns": np.where(first, returned - begun - blocked, 0),
        "blocked_ns": np.where(first, blocked, 0),
        "gpu_time_ns": np.where(launched, time, 0),
        "replayed_ns": np.where(replayed, time, 0),
        "launch_bound_ns": np.where(bound, time, 0),
        "waiting_ns": np.where(bound & ~before.none, until - before.reach, 0),
    }


class _Before(NamedTuple):
    """What ran on the device before each piece of work, in ns.

    Attributes:
        none: Where that is nothing.
        reach: The last end of all that began earlier.
        any_ended: Where something had ended when it began.
        ended: The last end of what had.
    """

    none: Flags
    reach: Ints
    any_ended: Flags
    ended: Ints


def _before(on: Axis, end: Ints) -> _Before:
    # The axis shifts every line by its own amount: good for comparing; figures are made of the ends of rows.
    order = np.argsort(on.start, kind="stable")
    high = np.maximum.accumulate(on.end[order])
    farthest = np.maximum.accumulate(np.where(on.end[order] == high, np.arange(order.size), 0))
    earlier = np.full(order.size, -1, np.int64)
    earlier[order[1:]] = order[farthest[:-1]]
    reach, found = _ends(on, end, earlier)
    by_end = np.argsort(on.end, kind="stable")
    # What took no time has itself ended when it begins.
    own = (on.end == on.start).astype(np.int64)
    last = np.searchsorted(on.end[by_end], on.start, side="right") - 1 - own
    ended, any_ended = _ends(on, end, np.append(by_end, -1)[last])
    return _Before(~found, reach, any_ended, ended)


def _ends(on: Axis, end: Ints, rows: Rows) -> tuple[Ints, Flags]:
    """The ends of some rows, and whether there is such a row on the same device; -1 is none."""
    found: Flags = (rows >= 0) & (on.line[rows] == on.line)
    return np.where(found, end[rows], 0), found


def _blocked(before: _Before, start: Ints, begun: Ints, returned: Ints) -> tuple[Ints, Flags]:
    """For how long the call that launched each piece of work was blocked, and which work was queued meanwhile."""
    late = returned > start
    lasted = before.ended - begun
    queued = late & before.any_ended & (lasted > 0) & (lasted >= start - before.ended)
    blocked = np.where(late, returned - np.maximum(start, begun), 0)
    return blocked + np.where(queued, lasted, 0), queued


def _first_of_launch(dataset: Dataset, table: pa.Table, launched: Flags) -> Flags:
    """One piece of work for each launch: a launch that started several counts once."""
    rows = np.flatnonzero(launched)
    calls = pd.DataFrame(
        {
            "report": report_codes(dataset, table)[rows],
            **{name: integers(table, name, missing=-1)[rows] for name in ("pid", "tid")},
            "start": integers(table, "launch_start_ns", missing=0)[rows],
            "end": integers(table, "launch_end_ns", missing=0)[rows],
        }
    )
    first: Rows = rows[~calls.duplicated().to_numpy()]
    found = np.zeros(launched.size, bool)
    found[first] = True
    return found
