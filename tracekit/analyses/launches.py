"""What launching cost the host, against what it started: whose work the GPU had to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.devices import WHERE, axis, from_graph, kernels, report_codes
from tracekit.analyses.labels import labels
from tracekit.analyses.spread import ratio, spread
from tracekit.analyses.subtrees import hierarchy, integers, summed
from tracekit.dataset import load

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.devices import Axis
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays import Flags, Ints, Rows
    from tracekit.dataset import Dataset

NAME = "launches"

_COLUMNS = (
    "module_id", "kind", "dur_ns", "pid", "tid", "launch_start_ns", "launch_end_ns", "graph_id",
    "graph_node_id", *WHERE,
)  # fmt: skip
_SUMS = ("launches", "launch_ns", "gpu_time_ns", "replayed_ns", "launch_bound_ns", "waiting_ns")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Launches by module, the most host time first.

    Work replayed from CUDA graphs has no launch of its own: it is ``replayed_ns`` and nothing else here. Work is
    launch-bound if all earlier work on its device had ended before its launch returned: the device waited for the host.

    Returns:
        A row per module, and one with a null ``path`` for work that no module owns, if there is some: ``path``,
        ``class_name``, ``inclusive_launch_bound_share`` (``launch_bound_share`` of the whole subtree), ``launches``,
        ``launch_ns`` (host time in them), ``gpu_time_ns`` (of what they started),
        ``launch_per_gpu`` (host time by GPU time; above 1 the host is slower), ``launch_bound_share`` (of
        ``gpu_time_ns``), ``launch_bound_ns`` (GPU time of launch-bound work), ``waiting_ns`` (for how long devices
        stood idle before it was launched), ``queue_median_ns`` and ``queue_p95_ns`` (from the launch's return to the
        start; negative if it started before), ``replayed_ns``; then the sums of the whole subtree,
        named ``inclusive_…``.
    """
    whole = load(dataset.folder)
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
    bound, waiting = _waits(on)
    first = _first_of_launch(dataset, table, launched)
    host = integers(table, "launch_end_ns", missing=0) - integers(
        table, "launch_start_ns", missing=0
    )
    return {
        "launches": first.astype(np.int64),
        "launch_ns": np.where(first, host, 0),
        "gpu_time_ns": np.where(launched, time, 0),
        "replayed_ns": np.where(replayed, time, 0),
        "launch_bound_ns": np.where(launched & bound, time, 0),
        "waiting_ns": np.where(launched & bound, waiting, 0),
    }


def _waits(on: Axis) -> tuple[Flags, Ints]:
    """Which work found its device idle when its launch returned, and for how long that had been so.

    The first work of a device found it idle for a time that nobody knows, which counts as none.
    """
    order = np.argsort(on.start, kind="stable")
    reach = np.maximum.accumulate(on.end[order])
    before = np.concatenate((reach[:1], reach[:-1]))
    line, launched = on.line[order], np.minimum(on.launched, on.start)[order]
    fresh = np.concatenate((np.ones(min(line.size, 1), bool), line[1:] != line[:-1]))
    bound, waiting = np.empty(line.size, bool), np.empty(line.size, np.int64)
    bound[order] = fresh | (before < on.launched[order])
    waiting[order] = np.where(fresh, 0, np.maximum(launched - before, 0))
    return bound, waiting


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
