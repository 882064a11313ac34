"""Captures of CUDA graphs: when a thread captured, which launches went into a graph instead of to the device.

A node is believed to come from a launch only if its making was recorded inside that call, and the call put no work on
the device. Some versions of nsys record nodes after the capture has ended: these lie in no launch, or in another
graph's, and say nothing by their time. Where any node of a process is recorded late, several nodes in one launch are
not believed, unless it launches batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import graph_launch_names, names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.nodes import Lineage
    from tracekit.recording.axis import Timeline
    from tracekit.recording.tables import Recording

#: Position on the axis of what is not known.
NOWHERE = np.iinfo(np.int64).min

OTHER, OF_KERNEL, OF_MEMCPY, OF_MEMSET, OF_NODE, UNNAMED, BEGINS, ENDS, REPLAYS = range(9)
#: API calls that become a node when captured, or make one, or delimit captures; the later ones are exceptions.
_ROLES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (OF_KERNEL, ("cudaLaunch", "cuLaunch")),
    (OF_MEMCPY, ("cudaMemcpy", "cuMemcpy")),
    (OF_MEMSET, ("cudaMemset", "cuMemset")),
    (OF_NODE, ("cudaGraphAdd", "cuGraphAdd", "cudaLaunchHostFunc", "cuLaunchHostFunc")),
    (BEGINS, ("cudaStreamBeginCapture", "cuStreamBeginCapture")),
    (ENDS, ("cudaStreamEndCapture", "cuStreamEndCapture")),
)
#: Of these, those that become several nodes.
_BATCHES = ("cudaMemcpyBatch", "cudaMemcpy3DBatch", "cuMemcpyBatch", "cuMemcpy3DBatch")


class Windows(NamedTuple):
    """Times on the axis between the begin and the end of a capture on one thread, in order.

    Attributes:
        begin: Start of the call that began it.
        opened: End of that call.
        closed: Start of the call that ended it.
        end: End of that call.
        alone: Whether no other capture may have been open on the thread meanwhile.
    """

    begin: Ints
    opened: Ints
    closed: Ints
    end: Ints
    alone: Flags

    def at(self, first: Ints, last: Ints) -> Rows:
        """The window that contains each ``[first, last]``, its calls included, or -1."""
        row = np.searchsorted(self.begin, first, side="right") - 1
        inside = (row >= 0) & (np.append(self.end, NOWHERE)[row] >= last)
        return np.where(inside, row, -1)

    def during(self, at: Ints) -> Flags:
        """Whether each time lies in a capture that has not ended."""
        row = self.at(at, at)
        return np.asarray((row >= 0) & (np.append(self.closed, NOWHERE)[row] >= at))


@dataclass(frozen=True, slots=True)
class Captures:
    """What was captured.

    Attributes:
        windows: The captures of which begin and end are known.
        edges: Starts of all calls that begin or end a capture.
        edge_thread: Row of threads of these.
        edge_begins: Which of these begin one.
        asked: Rows of launches that put work somewhere: on the device, or into a graph. Of calls around calls the
            outermost.
        role: What each of these becomes when captured: OF_KERNEL, …
        worked: Which of these put work on the device.
        captured: Which of these went into a graph, by a node that is believed or by the time.
        by_node: Which of these did by a node that is believed.
        node_start: For every node of the lineage the start of the launch that it was made in, or NOWHERE.
        node_end: The end of that launch.
    """

    windows: Windows
    edges: Ints
    edge_thread: Rows
    edge_begins: Flags
    asked: Rows
    role: Ints
    worked: Flags
    captured: Flags
    by_node: Flags
    node_start: Ints
    node_end: Ints


def captures_of(recording: Recording, line: Timeline, lineage: Lineage, works: Flags) -> Captures:
    """Finds what was captured.

    Args:
        recording: The recording.
        line: Its threads on one axis.
        lineage: Its graphs' nodes.
        works: Which launches put work on the device.
    """
    role = _roles(recording.names)[integers(recording.launches, "name")]
    windows, edges = _windows(line, role, integers(recording.launches, "thread"))
    nowhere = np.full(lineage.root.size, NOWHERE)
    if not edges.start.size and not recording.graph_nodes.num_rows:
        none, no = np.empty(0, dtype=np.int32), np.empty(0, dtype=bool)
        return Captures(windows, *edges, none, none, no, no, no, nowhere, nowhere)
    asked = _outermost(line, np.flatnonzero(works | _makes_node(role) | (role == REPLAYS)))
    worked = _with_work(line, asked, works)
    start, end = line.launch_start[asked], line.launch_end[asked]
    silent = _makes_node(role[asked]) & ~worked
    at, made = _makings(recording, line, lineage)
    inside = np.searchsorted(start, at, side="right") - 1
    inside[(inside < 0) | (np.append(end, NOWHERE)[inside] < at)] = -1
    process = recording.threads.process[integers(recording.launches, "thread")[asked]]
    captured_at = np.where(inside >= 0, np.append(silent, False)[inside], windows.during(at))
    in_time = _in_time(lineage, made[~captured_at], recording.threads.process_pid.size)
    number = _nodes_in(inside, made, asked.size)
    name = integers(recording.launches, "name")[asked]
    batch = np.isin(name, np.asarray(names_starting(recording.names, _BATCHES), dtype=np.int64))
    by_node = silent & ((number == 1) | ((number > 1) & (in_time[process] | batch)))
    believed = np.append(by_node, False)[inside]
    node_start, node_end = _places(
        lineage.root.size,
        made[believed],
        start[inside[believed]],
        end[inside[believed]],
    )
    stray = np.flatnonzero((inside < 0) & _matters(lineage)[made] & in_time[lineage.process[made]])
    timely = _timely(windows, (start, silent, by_node), at[stray])
    strays = _places(lineage.root.size, made[stray[timely]], at[stray[timely]], at[stray[timely]])
    unplaced = ~np.isin(np.arange(lineage.root.size), made[believed])
    node_start[unplaced], node_end[unplaced] = strays[0][unplaced], strays[1][unplaced]
    within = windows.at(start, end)
    captured = by_node | (silent & (within >= 0))
    return Captures(
        windows=windows,
        edges=edges.start,
        edge_thread=edges.thread,
        edge_begins=edges.begins,
        asked=asked,
        role=role[asked],
        worked=worked,
        captured=captured,
        by_node=by_node,
        node_start=node_start,
        node_end=node_end,
    )


def _roles(names: list[str]) -> Ints:
    """The role of every name; last that of a call without one."""
    roles = np.full(len(names) + 1, OTHER, dtype=np.int8)
    for role, prefixes in _ROLES:
        roles[names_starting(names, prefixes)] = role
    roles[graph_launch_names(names)] = REPLAYS
    roles[-1] = UNNAMED
    return roles


def _makes_node(role: Ints) -> Flags:
    return (role >= OF_KERNEL) & (role <= UNNAMED)


class _Edges(NamedTuple):
    """Calls that begin or end captures: start, row of threads, and which begin one."""

    start: Ints
    thread: Rows
    begins: Flags


def _windows(line: Timeline, role: Ints, thread: Ints) -> tuple[Windows, _Edges]:
    """The captures, and every call that begins or ends one."""
    # The runtime's call is around the driver's; both say the same.
    rows = _outermost(line, np.flatnonzero((role == BEGINS) | (role == ENDS)))
    begins, thread = role[rows] == BEGINS, thread[rows]
    joined = np.zeros(rows.size + 1, dtype=bool)
    joined[1:-1] = thread[1:] == thread[:-1]
    pair = np.flatnonzero(begins[:-1] & ~begins[1:] & joined[1:-1])
    opened_before = joined[pair] & begins[pair - 1]
    closed_after = joined[pair + 2] & ~np.append(begins, True)[pair + 2]
    start, end = line.launch_start[rows], line.launch_end[rows]
    alone = ~opened_before & ~closed_after
    windows = Windows(start[pair], end[pair], start[pair + 1], end[pair + 1], alone)
    return windows, _Edges(start, thread, begins)


def _outermost(line: Timeline, rows: Rows) -> Rows:
    """Those of some launches that lie in no other of them."""
    reach = np.maximum.accumulate(line.launch_end[rows])
    within = np.zeros(rows.size, dtype=bool)
    within[1:] = line.launch_end[rows[1:]] <= reach[:-1]
    touching = np.zeros(rows.size, dtype=bool)
    touching[1:] = line.launch_start[rows[1:]] >= reach[:-1]
    return rows[~within | touching]


def _with_work(line: Timeline, outer: Rows, works: Flags) -> Flags:
    """Which of some calls put work on the device, they themselves or a call inside."""
    found = np.zeros(outer.size, dtype=bool)
    if outer.size:
        start = line.launch_start[np.flatnonzero(works)]
        found[np.searchsorted(line.launch_start[outer], start, side="right") - 1] = True
    return found


def _makings(recording: Recording, line: Timeline, lineage: Lineage) -> tuple[Ints, Rows]:
    """When each node that is no copy was made, and which it is; once each, however often that is recorded."""
    timed = np.asarray(recording.graph_nodes.column("start_ns").is_valid())
    rows = np.flatnonzero(timed & ~lineage.copied[lineage.of_record])
    node, at = lineage.of_record[rows], line.node_at[rows]
    order = np.lexsort((at, node))
    node, at = node[order], at[order]
    fresh = np.ones(node.size, dtype=bool)
    fresh[1:] = (node[1:] != node[:-1]) | (at[1:] != at[:-1])
    return at[fresh], node[fresh]


def _in_time(lineage: Lineage, late: Rows, processes: int) -> Flags:
    """For every process whether no node of consequence was recorded outside of captures.

    Args:
        lineage: The nodes.
        late: Those that were made outside of captured launches, as far as the report has them, and of captures.
        processes: How many processes there are.
    """
    of_consequence = late[_matters(lineage)[late]]
    found = np.ones(processes, dtype=bool)
    found[lineage.process[of_consequence]] = False
    return found


def _nodes_in(inside: Rows, node: Rows, launches: int) -> Ints:
    """How many nodes were made in each launch."""
    seen = np.unique(np.stack((inside, node), axis=1)[inside >= 0], axis=0)
    return np.bincount(seen[:, 0], minlength=launches)


def _places(nodes: int, node: Rows, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Start and end of the one place where each node was made; NOWHERE for none and for several."""
    first, last = np.full(nodes, np.iinfo(np.int64).max), np.full(nodes, NOWHERE)
    ends = last.copy()
    np.minimum.at(first, node, start)
    np.maximum.at(last, node, start)
    np.maximum.at(ends, node, end)
    return np.where(first == last, last, NOWHERE), np.where(first == last, ends, NOWHERE)


def _matters(lineage: Lineage) -> Flags:
    """Which nodes a capture must have made: the originals of others; in processes without copies, what did work.

    An instance has nodes of its own that are no copies, whether they do work or not.
    """
    copying = np.zeros(int(lineage.process.max(initial=0)) + 1, dtype=bool)
    copying[lineage.process[lineage.copied]] = True
    telling = lineage.copied | (lineage.replayed & ~copying[lineage.process])
    root = np.where(telling, lineage.root, -1)
    return np.asarray(np.bincount(root + 1, minlength=root.size + 1)[1:] > 0)


def _timely(windows: Windows, launches: tuple[Ints, Flags, Flags], at: Ints) -> Flags:
    """Which nodes that were made in no recorded launch were made during the capture they lie in.

    Only where every launch of that capture has its own node: then the rest of the nodes are those of launches that
    were not recorded.

    Args:
        windows: The captures.
        launches: Start of every launch, whether it may have been captured, and whether a node says so.
        at: When the nodes were made, of processes none of whose nodes is recorded late.
    """
    row = windows.at(at, at)
    if not windows.begin.size:
        return np.zeros(at.size, dtype=bool)
    start, silent, by_node = launches
    missing = np.concatenate(([0], np.cumsum(silent & ~by_node)))
    low = np.searchsorted(start, windows.opened[row])
    high = np.searchsorted(start, windows.closed[row])
    return np.asarray((row >= 0) & windows.alone[row] & (missing[high] == missing[low]))
