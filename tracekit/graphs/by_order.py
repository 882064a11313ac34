"""Nodes of a CUDA graph in their order are the launches of its capture in theirs.

For graphs whose nodes were not recorded while they were captured. It holds only where it is certain which capture
made the graph, where nodes and launches agree in number and, one by one, in kind, and where no replay ran nodes on one
stream in another order. It is certain if

* some of the graph's nodes are known to come from launches of that capture, or else
* the report says which graph the capture made, or else
* the graph's nodes were recorded after that capture had ended, and no other can claim them (``graph_late.py``), or else
* nothing of the process's graphs is recorded, but all that it asked of CUDA, from its first call on; and captures and
  graphs are as many and can be paired in one way only (``pairing.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.graphs.captures import OF_KERNEL, OF_MEMCPY, OF_MEMSET
from tracekit.graphs.instances import instances
from tracekit.graphs.late import Accounts, Size, recorded_late
from tracekit.graphs.origins import Origins
from tracekit.graphs.pairing import Capture, agree, only_pairs
from tracekit.recording.tables import (
    GRAPH_CLONED,
    GRAPH_CREATED,
    GRAPH_INSTANTIATED,
    KERNEL,
    MEMCPY,
    MEMSET,
)

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.captures import Captures
    from tracekit.graphs.instances import Instance
    from tracekit.graphs.nodes import Lineage
    from tracekit.recording.axis import Timeline
    from tracekit.recording.tables import Recording


_MOST_CLONES = 64
#: Stands for the graph of an instance some of whose nodes have their place.
_PLACED = -1
_KIND = {OF_KERNEL: KERNEL, OF_MEMCPY: MEMCPY, OF_MEMSET: MEMSET}


class _Known(NamedTuple):
    """What there is to know about graphs."""

    recording: Recording
    line: Timeline
    lineage: Lineage
    captures: Captures
    origins: Origins


def completed(
    recording: Recording,
    line: Timeline,
    lineage: Lineage,
    captures: Captures,
    origins: Origins,
    launch: Rows,
) -> Origins:
    """The places where nodes were captured, with those that order tells.

    Args:
        recording: The recording.
        line: Its threads on one axis.
        lineage: Its graphs' nodes.
        captures: Its captures.
        origins: Where descent tells that nodes were captured.
        launch: Row of the launch of every piece of work, or -1.
    """
    pending = lineage.replayed & ~origins.known
    if not pending.any() or not captures.windows.alone.any():
        return origins
    known = _Known(recording, line, lineage, captures, origins)
    candidates = _captures(known)
    start, end, by_order = origins.start.copy(), origins.end.copy(), origins.by_order.copy()
    for instance, capture in _pairs(known, candidates, instances(recording, lineage, launch)):
        rest = ~origins.known[instance.nodes]
        nodes = instance.nodes[rest]
        start[nodes], end[nodes], by_order[nodes] = capture.start[rest], capture.end[rest], True
    return Origins(start, end, by_order)


def _captures(known: _Known) -> list[Capture]:
    """The captures with launches that no other capture can have had."""
    captures, recording = known.captures, known.recording
    windows, asked = captures.windows, captures.asked
    kind = _kinds(captures.role)
    rows = np.flatnonzero(captures.captured & (kind >= 0))
    start = known.line.launch_start[asked[rows]]
    low, high = (np.searchsorted(start, edge) for edge in (windows.opened, windows.closed))
    process = recording.threads.process[integers(recording.launches, "thread")]
    end_ns = integers(recording.launches, "end_ns")
    found = []
    for at in np.flatnonzero(windows.alone & (high > low)).tolist():
        own = rows[low[at] : high[at]]
        launches = asked[own]
        found.append(
            Capture(
                at,
                int(process[launches[0]]),
                int(end_ns[launches[-1]]),
                known.line.launch_start[launches],
                known.line.launch_end[launches],
                kind[own].tobytes(),
            )
        )
    return found


def _kinds(role: Ints) -> Ints:
    """The kind of work that launches become; -1 for other calls."""
    kind = np.full(128, -1, dtype=np.int8)
    kind[list(_KIND)] = list(_KIND.values())
    return kind[role]


def _pairs(known: _Known, captures: list[Capture], found: list[Instance]) -> list[tuple[Instance, Capture]]:
    """Every instance with the capture that is certain to have made its graph."""
    by_window = {capture.window: capture for capture in captures}
    made = _made_graphs(known)
    late = recorded_late(
        known.recording,
        known.line,
        known.lineage,
        known.captures,
        known.origins.known,
        _accounts(known, made),
    )
    told = [_told(known, made, late, instance) for instance in found]
    graphs: dict[int | None, set[int]] = {}
    for instance, window in zip(found, told, strict=True):
        graphs.setdefault(window, set()).add(_graph_of(known, made, instance))
    pairs = [
        (instance, by_window[window])
        for instance, window in zip(found, told, strict=True)
        if window is not None
        and window in by_window
        and len(graphs[window] - {_PLACED}) <= 1  # a capture makes one graph
        and agree(instance, by_window[window])
        and _stands(known.origins, instance, by_window[window])
    ]
    silent = [instance for instance in found if instance.process not in made.recorded]
    return pairs + only_pairs(known.recording, known.captures, captures, silent)


def _stands(origins: Origins, instance: Instance, capture: Capture) -> bool:
    """Whether the nodes that have their place have the one that the order gives them."""
    start = origins.start[instance.nodes]
    return bool(((start == capture.start) | ~origins.known[instance.nodes]).all())


def _accounts(known: _Known, made: _Made) -> Accounts:
    """What captures and graphs there are beside the nodes that were recorded late."""
    captures, origins = known.captures, known.origins
    windows = captures.windows
    start = known.line.launch_start[captures.asked]
    kind = _kinds(captures.role)
    work, others = (
        np.searchsorted(start[captures.captured & one], (windows.opened, windows.closed))
        for one in (kind >= 0, kind < 0)
    )
    sizes = {
        at: Size(int(work[1, at] - work[0, at]), int(others[1, at] - others[0, at]))
        for at in np.flatnonzero(windows.alone).tolist()
    }
    in_time = windows.at(origins.start[origins.known], origins.end[origins.known])
    silent = np.array([at for at, size in sizes.items() if not any(size)], dtype=np.int64)
    empty = silent[_whole(known, silent)]
    return Accounts(
        sizes,
        {*in_time.tolist(), *empty.tolist()} - {-1},
        {graph: next(iter(during)) for graph, during in made.window.items() if len(during) == 1},
    )


def _whole(known: _Known, windows: Rows) -> Flags:
    """During which captures all calls of the process are recorded: their correlation ids have no gap."""
    recording, bounds = known.recording, known.captures.windows
    begin, end = (np.searchsorted(known.line.launch_start, edge[windows]) for edge in (bounds.begin, bounds.closed))
    ids = integers(recording.launches, "correlation_id")
    process = recording.threads.process[integers(recording.launches, "thread")]
    whole = np.zeros(windows.size, dtype=bool)
    for one in np.unique(process[begin]).tolist():
        known_ids, mine = np.unique(ids[process == one]), process[begin] == one
        first, last = ids[begin[mine]], ids[end[mine]]
        calls = np.searchsorted(known_ids, last) - np.searchsorted(known_ids, first)
        whole[mine] = calls == last - first
    return whole


class _Made(NamedTuple):
    """What is recorded of graphs.

    Attributes:
        window: The captures during which each graph was created, by (process, graph).
        source: The graphs that each instance or clone was made of, by (process, id).
        recorded: Processes in which the making of any graph or node is recorded.
    """

    window: dict[tuple[int, int], set[int]]
    source: dict[tuple[int, int], set[int]]
    recorded: set[int]


def _made_graphs(known: _Known) -> _Made:
    graphs, recording = known.recording.graphs, known.recording
    process = recording.threads.process[integers(graphs, "thread")]
    noded = recording.threads.process[integers(recording.graph_nodes, "thread")]
    made = _Made({}, {}, {*process.tolist(), *noded.tolist()})
    at = known.line.graph_at
    window = np.where(np.asarray(graphs.column("start_ns").is_valid()), known.captures.windows.at(at, at), -1)
    columns = (integers(graphs, name) for name in ("event", "graph_id", "original_graph_id", "exec_id"))
    for owner, during, event, graph, original, instance in zip(
        process.tolist(), window.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        if event == GRAPH_CREATED and graph >= 0:
            made.window.setdefault((owner, graph), set()).add(during)
        elif event == GRAPH_INSTANTIATED:
            made.source.setdefault((owner, instance), set()).add(graph)
        elif event == GRAPH_CLONED:
            made.source.setdefault((owner, graph), set()).add(original)
    return made


def _told(known: _Known, made: _Made, late: Rows, instance: Instance) -> int | None:
    """The capture that made an instance's graph, as far as records tell; None if they do not, or disagree."""
    origins = known.origins
    placed = instance.nodes[origins.known[instance.nodes]]
    if placed.size:
        return _one(known.captures.windows.at(origins.start[placed], origins.end[placed]))
    source = _source(made, instance)
    windows = made.window.get((instance.process, source), set())
    # That the instance itself was created outside of captures goes without saying.
    if windows - {-1} or (windows and source != instance.graph):
        return _one(np.array(list(windows)))
    return _one(late[instance.nodes])


def _one(windows: Rows) -> int | None:
    same = windows.size and windows[0] >= 0 and (windows == windows[0]).all()
    return int(windows[0]) if same else None


def _graph_of(known: _Known, made: _Made, instance: Instance) -> int:
    """What tells the graphs of instances apart: an id, or the first of the original nodes."""
    if known.origins.known[instance.nodes].any():
        return _PLACED
    original = int(known.lineage.original[instance.nodes].min())
    return original if original >= 0 else _source(made, instance)


def _source(made: _Made, instance: Instance) -> int:
    """The graph that an instance was made of, over clones; -1 where that is not said, or disputed.

    An instance is itself a graph, created outside of captures.
    """
    at = -1 if instance.graph is None else instance.graph
    for _ in range(_MOST_CLONES):
        sources = made.source.get((instance.process, at), set()) - {at}
        if not sources:
            return at
        if len(sources) > 1:
            break
        (at,) = sources
    return -1
