"""Where the nodes of a CUDA graph were captured, by their order: nodes are the launches of the graph capture in turn.

For graphs whose nodes were not recorded while they were captured. The method holds only where it is certain which graph
capture made the graph, where nodes and launches agree in number and, one by one, in kind, and where no replay ran nodes
of one stream in another order. The graph capture is certain if

* some of the graph's nodes are known to come from its launches, or else
* the report says which graph it made, or else
* the graph's nodes were recorded after it had ended, and no other graph capture can claim them (``late``), or else
* the report has every CUDA call of the process and no record of its graphs, and graph captures and graphs are equal in
  number and pair up in one way only (``pairing``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.graphs.graph_records import graph_records_of
from tracekit.graphs.instances import instances
from tracekit.graphs.late import Accounts, Size, recorded_late
from tracekit.graphs.origins import Origins
from tracekit.graphs.pairing import agree, graph_captures_with_launches, kinds_of, only_pairs
from tracekit.graphs.windows import completely_recorded

if TYPE_CHECKING:
    from tracekit.arrays.types import Rows
    from tracekit.graphs.graph_records import GraphRecords
    from tracekit.graphs.instances import Instance
    from tracekit.graphs.origins import GraphEvidence
    from tracekit.graphs.pairing import GraphCapture


#: Stands for the graph of an instance with some nodes that have their place.
_PLACED = -1


def completed(known: GraphEvidence, launch: Rows) -> Origins:
    """The places where nodes were captured, with those that follow from the order of launches.

    Args:
        known: What is known about the recording's graphs.
        launch: Row of the launch of every piece of work, or -1.
    """
    origins = known.origins
    pending = known.lineage.replayed & ~origins.known
    if not pending.any() or not known.captures.windows.alone.any():
        return origins
    captures = list(graph_captures_with_launches(known))
    start, end, by_order = origins.start.copy(), origins.end.copy(), origins.by_order.copy()
    for instance, capture in _pairs(known, captures, instances(known.recording, known.lineage, launch)):
        rest = ~origins.known[instance.nodes]
        nodes = instance.nodes[rest]
        start[nodes], end[nodes], by_order[nodes] = capture.start[rest], capture.end[rest], True
    return Origins(start, end, by_order, origins.shared)


def _pairs(
    known: GraphEvidence, captures: list[GraphCapture], replayed: list[Instance]
) -> list[tuple[Instance, GraphCapture]]:
    """Every instance with the graph capture that is certain to have made its graph."""
    records = graph_records_of(known)
    windows = _windows_of(known, records, replayed)
    graphs = _graphs_by_window(known, records, replayed, windows)
    by_window = {capture.window: capture for capture in captures}
    pairs = [
        (instance, capture)
        for instance, window in zip(replayed, windows, strict=True)
        if window is not None
        and (capture := by_window.get(window)) is not None
        and len(graphs[window] - {_PLACED}) <= 1  # a graph capture makes one graph
        and agree(instance, capture)
        and _keeps_places(known.origins, instance, capture)
    ]
    unrecorded = [instance for instance in replayed if instance.process not in records.processes]
    return pairs + only_pairs(known.recording, known.captures, captures, unrecorded)


def _keeps_places(origins: Origins, instance: Instance, capture: GraphCapture) -> bool:
    """Whether the order gives the nodes whose place is known that very place."""
    start = origins.start[instance.nodes]
    return bool(((start == capture.start) | ~origins.known[instance.nodes]).all())


def _windows_of(known: GraphEvidence, records: GraphRecords, replayed: list[Instance]) -> list[int | None]:
    """The window of the graph capture that made each instance's graph; None where records do not say, or disagree."""
    late = recorded_late(known, _accounts(known, records))
    return [_window_of(known, records, late, instance) for instance in replayed]


def _window_of(known: GraphEvidence, records: GraphRecords, late: Rows, instance: Instance) -> int | None:
    origins = known.origins
    placed = instance.nodes[origins.known[instance.nodes]]
    if placed.size:
        return _agreed(known.captures.windows.at(origins.start[placed], origins.end[placed]))
    source = records.source(instance)
    windows = records.windows.get((instance.process, source), set())
    # An instance itself is always created outside of graph captures, which proves nothing.
    if windows - {-1} or (windows and source != instance.graph):
        return _agreed(np.array(list(windows)))
    return _agreed(late[instance.nodes])


def _agreed(windows: Rows) -> int | None:
    same = windows.size and windows[0] >= 0 and (windows == windows[0]).all()
    return int(windows[0]) if same else None


def _graphs_by_window(
    known: GraphEvidence, records: GraphRecords, replayed: list[Instance], windows: list[int | None]
) -> dict[int | None, set[int]]:
    """By window, the graphs of the instances it seems to have made: ids, or the first of the original nodes."""
    graphs: dict[int | None, set[int]] = {}
    for instance, window in zip(replayed, windows, strict=True):
        original = int(known.lineage.original[instance.nodes].min())
        if known.origins.known[instance.nodes].any():
            graph = _PLACED
        else:
            graph = original if original >= 0 else records.source(instance)
        graphs.setdefault(window, set()).add(graph)
    return graphs


def _accounts(known: GraphEvidence, records: GraphRecords) -> Accounts:
    """Sizes of graph captures, and what is settled about them before late records are looked at."""
    windows, origins = known.captures.windows, known.origins
    sizes = _sizes(known)
    with_nodes = windows.at(origins.start[origins.known], origins.end[origins.known])
    without_launches = np.array([window for window, size in sizes.items() if not any(size)], dtype=np.int64)
    empty = without_launches[completely_recorded(known.recording, known.axis, windows, without_launches)]
    return Accounts(sizes, {*with_nodes.tolist(), *empty.tolist()} - {-1}, records.only_windows())


def _sizes(known: GraphEvidence) -> dict[int, Size]:
    """By window, how much was launched during graph captures that were alone on their thread."""
    windows, submissions = known.captures.windows, known.captures.submissions
    kind = kinds_of(submissions.role)
    bounds = windows.opened, windows.closed
    launches, others = (
        np.diff(np.searchsorted(submissions.start[known.captures.captured & of_kind], bounds), axis=0)[0]
        for of_kind in (kind >= 0, kind < 0)
    )
    rows = np.flatnonzero(windows.alone).tolist()
    return {row: Size(int(launches[row]), int(others[row])) for row in rows}
