"""Which graph capture made the nodes that were recorded after it had ended: at once, or together with those of others.

Records say which thread wrote them and when, not of which capture they are. The captures of a thread that have ended
and whose nodes are not accounted for yet can all claim them. Graphs are numbered in the order in which their captures
began, and ids of nodes carry the graph's number: so where as many graphs were recorded as there are captures to claim
them, the first belongs to the first, and so on, if every one has as many nodes as its capture launches. Where ids carry
no number, nodes belong to a capture only if no other can claim them. Fewer graphs than captures leave open whose
records are lost or yet to come, now and for all that follows; more show that some were captured before the recording.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import names_starting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Rows
    from tracekit.graphs.captures import Captures
    from tracekit.graphs.nodes import Lineage
    from tracekit.recording.axis import Timeline
    from tracekit.recording.tables import Recording

#: API calls that make nodes which were not captured: copies, and an instance's own.
_COPIES = ("cudaGraphInstantiate", "cuGraphInstantiate", "cudaGraphClone", "cuGraphClone")
_GRAPH_BIT = np.uint64(32)  # of unsigned ids
#: The window of a capture of which begin or end is not known.
_UNKNOWN = -1
#: A thread on which more captures than these wait for their nodes is not asked any more.
_MOST_CLAIMS = 1024


class Size(NamedTuple):
    """How many launches a capture has that become work, and how many other calls that may become nodes."""

    launches: int
    others: int


class _Group(NamedTuple):
    """Nodes of one graph recorded late: its number, 0 if their ids have none; the nodes; if all at one place."""

    number: int
    nodes: Rows
    together: bool


class Accounts(NamedTuple):
    """What is known of captures and graphs before late records are looked at.

    Attributes:
        sizes: Of the captures, by window, whose launches are known.
        settled: Windows whose nodes are accounted for, or that made none.
        windows: The capture that made a graph, by (process, number), where that is recorded; -1 if it was none.
    """

    sizes: dict[int, Size]
    settled: set[int]
    windows: dict[tuple[int, int], int]


def recorded_late(
    recording: Recording,
    line: Timeline,
    lineage: Lineage,
    captures: Captures,
    placed: Flags,
    accounts: Accounts,
) -> Rows:
    """For every node the capture, as a window, that is certain to have made its original, which was recorded late.

    Args:
        recording: The recording.
        line: Its threads on one axis.
        lineage: Its graphs' nodes.
        captures: Its captures.
        placed: Which nodes have their place, since they were recorded in time.
        accounts: What is known of captures and graphs.

    Returns:
        Rows of windows, -1 where that is not certain.
    """
    window = np.full(lineage.root.size + 1, -1, dtype=np.int64)
    at_edge: dict[int, list[_Group]] = defaultdict(list)
    for edge, group in _groups(lineage, *_late(recording, line, lineage, captures), placed):
        known = accounts.windows.get((int(lineage.process[group.nodes[0]]), group.number))
        if known is None:
            at_edge[edge].append(group)
        else:
            window[group.nodes] = known
            accounts.settled.update({known} - {_UNKNOWN})
    if at_edge:
        for made, group in _assigned(captures, accounts, at_edge):
            window[group.nodes] = made
    return window[lineage.original]


def _late(recording: Recording, line: Timeline, lineage: Lineage, captures: Captures) -> tuple[Rows, Rows]:
    """The nodes that are no copies, and the call that ended a capture before each record of one and after any other."""
    records, at = recording.graph_nodes, line.node_at
    timed = np.asarray(records.column("start_ns").is_valid())
    edge = np.searchsorted(captures.edges, at, side="right") - 1
    after = (edge >= 0) & timed & ~lineage.copied[lineage.of_record]
    after &= captures.edge_thread[edge] == integers(records, "thread") if edge.size else after
    after[after] = ~captures.edge_begins[edge[after]]
    copies = np.asarray(names_starting(recording.names, _COPIES), dtype=np.int64)
    copying = np.isin(integers(recording.launches, "name"), copies)
    call = np.searchsorted(line.launch_start[copying], at, side="right") - 1
    reach = np.maximum.accumulate(line.launch_end[copying])
    after &= (call < 0) | (np.append(reach, at.max(initial=0))[call] < at)
    rows = np.flatnonzero(after)
    return lineage.of_record[rows], edge[rows]


def _groups(lineage: Lineage, node: Rows, edge: Rows, placed: Flags) -> Iterator[tuple[int, _Group]]:
    """The graphs that were recorded late, each with the last call that ended a capture before its records."""
    number = (lineage.node_id.astype(np.uint64) >> _GRAPH_BIT).astype(np.int64)
    graph = lineage.process.astype(np.int64) << int(_GRAPH_BIT) | number
    elsewhere = (lineage.copied | placed) & (number > 0)
    other = ~np.isin(graph[node], graph[elsewhere])
    node, edge = node[other], edge[other]
    # Without a number, all that was recorded at one place is one.
    place = np.where(number[node] > 0, 0, edge)
    order = np.lexsort((place, graph[node]))
    node, edge, place = node[order], edge[order], place[order]
    fresh = (np.diff(graph[node]) != 0) | (np.diff(place) != 0)
    bounds = np.flatnonzero(fresh) + 1
    for nodes, edges in zip(np.split(node, bounds), np.split(edge, bounds), strict=True):
        if nodes.size:
            together = bool((edges == edges[0]).all())
            yield int(edges.max()), _Group(int(number[nodes[0]]), np.unique(nodes), together)


def _assigned(captures: Captures, accounts: Accounts, at_edge: dict[int, list[_Group]]) -> list[tuple[int, _Group]]:
    """Windows and the graphs that they certainly made."""
    found: list[tuple[int, _Group]] = []
    window = _windows_of(captures)
    claiming: list[int] = []
    groups: list[_Group] = []
    thread = -1
    for edge, (begins, of_thread) in enumerate(
        zip(captures.edge_begins.tolist(), captures.edge_thread.tolist(), strict=True)
    ):
        if of_thread != thread:
            claiming, groups, thread = [], [], of_thread
        if len(claiming) > _MOST_CLAIMS:
            continue
        if (begins or window[edge] == _UNKNOWN) and window[edge] not in accounts.settled:
            claiming.append(window[edge])
        if edge in at_edge:
            groups = sorted([*groups, *at_edge[edge]], key=lambda group: group.number)
            if len(claiming) == len(groups) and _fit(accounts.sizes, claiming, groups):
                found += zip(claiming, groups, strict=True)
            if _accounted(accounts.sizes, claiming, groups):
                claiming, groups = [], []
    return found


def _windows_of(captures: Captures) -> list[int]:
    """The window that every call belongs to which begins or ends a capture."""
    edges, windows = captures.edges, captures.windows
    row = np.full(edges.size, _UNKNOWN, dtype=np.int64)
    row[np.searchsorted(edges, windows.begin)] = np.arange(windows.begin.size)
    row[np.searchsorted(edges, windows.closed)] = np.arange(windows.begin.size)
    found: list[int] = row.tolist()
    return found


def _fit(sizes: dict[int, Size], claiming: list[int], groups: list[_Group]) -> bool:
    """Whether every graph has as many nodes as its capture launches.

    A graph alone may have more, which do no work, but not as many more as another capture of that size would add.
    """
    alone = len(groups) == 1
    for window, group in zip(claiming, groups, strict=True):
        size = sizes.get(window)
        if size is None or not group.together or not (alone or group.number):
            return False
        most = size.launches + size.others + (size.launches - 1 if alone else 0)
        if not size.launches <= group.nodes.size <= most:
            return False
    return True


def _accounted(sizes: dict[int, Size], claiming: list[int], groups: list[_Group]) -> bool:
    """Whether no capture is left that could claim what is recorded later."""
    if all(group.number for group in groups):
        return len(groups) >= len(claiming)
    launches = [sizes[window].launches if window in sizes else None for window in claiming]
    nodes = sum(group.nodes.size for group in groups)
    return len(claiming) <= 1 or (None not in launches and nodes >= sum(filter(None, launches)))
