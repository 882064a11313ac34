"""Where the nodes of a CUDA graph were captured, by order: a replay runs what its graph capture launched, one for one.

There is one rule: what one outermost range (a step) replays are, graph by graph, the same kernels, copies and memsets
in the same order as all that was captured inside one outermost range before, once or again and again. The README lists
what the rule rests on. If several graph captures fit, a node has its place if they all had the same module there
(``label``): then its module is known, not its call.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import BEGINS_CAPTURE, GRAPH_LAUNCH, KIND_OF_ROLE, launches_named, roles_of
from tracekit.graphs.captures import NOWHERE, GraphEvidence, Origins
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import GRAPH, KERNEL, MEMCPY, MEMSET, WORK_KINDS, Recording

#: What a node does: copies and memsets by these codes, kernels by the row of their name.
_NAMELESS, _COPY, _SET = -1, -2, -3
_CODE_OF_KIND = np.full(len(WORK_KINDS), _NAMELESS, dtype=np.int64)
_CODE_OF_KIND[[MEMCPY, MEMSET]] = _COPY, _SET
#: ROCm copies and sets memory with kernels of these names.
_BUILT_IN = (("__amd_rocclr_copyBuffer", _COPY), ("__amd_rocclr_fillBuffer", _SET))
_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent")
#: Newer ids of nodes carry the graph or its instance above this bit.
_GRAPH_BIT = 32

#: A process, and what was captured or replayed there, in order: codes as bytes.
_Key = tuple[int, bytes]


class _Captured(NamedTuple):
    """The launches of a graph capture, in order, and a number for the outermost range around it.

    Attributes:
        key: With the names of kernels if all have one, otherwise without.
        forked: Whether a stream waited for another.
    """

    key: _Key
    end_ns: int
    start: Ints
    end: Ints
    label: Ints
    forked: bool
    group: int


class _Replay(NamedTuple):
    """What one launch of a graph ran, in order, and a number for the outermost range around it.

    Attributes:
        graph: The process and the id of its graph; or, if that is not known, -1 and the launch.
        keys: With the names of kernels and without.
        numbered: Whether all of it names its nodes.
    """

    start_ns: int
    graph: tuple[int, int]
    nodes: Rows
    keys: tuple[_Key, _Key]
    numbered: bool
    group: int


def unnumbered_work(recording: Recording, launch: Rows) -> Rows | None:
    """Rows of replayed kernels that name no node; None if no graph capture can show where they come from."""
    if recording.records_graphs:
        return None
    role = roles_of(recording)
    if not (role == BEGINS_CAPTURE).any():
        return None
    by_graph = np.append(role == GRAPH_LAUNCH, False)[launch]
    work = recording.work
    return np.flatnonzero(by_graph & (work.kind != GRAPH) & (work.process >= 0) & (work.graph_node_id == -1))


def match_by_order(known: GraphEvidence, launch: Rows, label: Ints) -> Origins:
    """The places of nodes with those that follow from order; launches in one module have the same ``label``."""
    origins = known.origins
    pending = known.chains.replayed & ~origins.known
    if known.recording.records_graphs or not pending.any() or not known.captures.windows.isolated.any():
        return origins
    captures = [*_captures_of(known, label)]
    replays = [*_replays_of(known, launch, pending)]
    start, end = origins.start.copy(), origins.end.copy()
    by_order, shared = origins.by_order.copy(), origins.shared.copy()
    for replay, candidates in zip(replays, _candidates(captures, replays), strict=True):
        if not candidates:
            continue
        first, *others = (captures[row] for row in sorted(candidates))
        agreed = np.all([first.label == other.label for other in others], axis=0)
        places = np.flatnonzero(pending[replay.nodes] & agreed)
        nodes = replay.nodes[places]
        start[nodes], end[nodes] = first.start[places], first.end[places]
        by_order[nodes], shared[nodes] = True, bool(others)
    return Origins(start, end, by_order, shared)


def _captures_of(known: GraphEvidence, label: Ints) -> Iterator[_Captured]:
    """The graph captures and their launches, in order.

    Where one became several nodes, or nodes were added by hand, the replay runs more than these.
    """
    recording, windows, submissions = known.recording, known.captures.windows, known.captures.submissions
    kind = KIND_OF_ROLE[submissions.role]
    rows = np.flatnonzero(known.captures.captured & (kind >= 0))
    low, high = (np.searchsorted(submissions.start[rows], edge) for edge in (windows.opened, windows.closed))
    waits = np.flatnonzero(launches_named(recording, _WAITS))
    forked = windows.at(known.axis.launch_start[waits], known.axis.launch_end[waits])
    group = _outermost_range(known.axis, windows.begin, windows.end)
    for window in np.flatnonzero(windows.isolated & (high > low)).tolist():
        own = rows[low[window] : high[window]]
        launch, codes = submissions.row[own], _CODE_OF_KIND[kind[own]]
        kernels = codes == _NAMELESS
        if (recording.launches.kernel[launch[kernels]] >= 0).all():
            codes[kernels] = recording.launches.kernel[launch[kernels]]
        yield _Captured(
            key=(int(submissions.process[own[0]]), codes.tobytes()),
            end_ns=int(recording.launches.end_ns[launch[-1]]),
            start=submissions.start[own],
            end=submissions.end[own],
            label=label[launch],
            forked=window in forked,
            group=int(group[window]),
        )


def _replays_of(known: GraphEvidence, launch: Rows, pending: Flags) -> Iterator[_Replay]:
    """The replays of graphs with nodes that lack a place, by launch; those whose order is certain."""
    work, axis = known.recording.work, known.axis
    rows = np.flatnonzero((known.chains.of_work >= 0) & (launch >= 0))
    rows = rows[np.isin(launch[rows], launch[rows[pending[known.chains.of_work[rows]]]])]
    rows = rows[np.lexsort((work.start_ns[rows], launch[rows]))]
    launches, first = np.unique(launch[rows], return_index=True)
    group = _outermost_range(axis, axis.launch_start[launches], axis.launch_end[launches])
    codes = _codes(known.recording)
    for number, own in enumerate(np.split(rows, first[1:]) if rows.size else ()):
        order = _in_order(work.graph_node_id[own], work.stream[own])
        if order is None:
            continue
        nodes, ids, code = (column[own][order] for column in (known.chains.of_work, work.graph_node_id, codes))
        process = int(work.process[own[0]])
        graphs = {*work.graph_id[own].tolist(), *(ids >> _GRAPH_BIT).tolist()} - {0, -1}
        yield _Replay(
            start_ns=int(known.recording.launches.start_ns[launches[number]]),
            graph=(process, graphs.pop()) if len(graphs) == 1 else (-1, int(launches[number])),
            nodes=nodes,
            keys=((process, code.tobytes()), (process, np.minimum(code, _NAMELESS).tobytes())),
            numbered=bool((ids >= 0).all()),
            group=int(group[number]),
        )


def _in_order(ids: Ints, stream: Ints) -> Rows | None:
    """The order in which work of a replay was captured, given in the order in which it ran; None if not certain."""
    if (ids < 0).any():
        return np.arange(ids.size) if (stream == stream[0]).all() else None
    by_stream = np.argsort(stream, kind="stable")
    falls = (np.diff(ids[by_stream]) <= 0) & (np.diff(stream[by_stream]) == 0)
    order = np.argsort(ids)
    return None if falls.any() or (np.diff(ids[order]) == 0).any() else order


def _codes(recording: Recording) -> Ints:
    kind, name = recording.work.kind, recording.work.full_name
    code: Ints = np.where((kind == KERNEL) & (name >= 0), name, _CODE_OF_KIND[kind])
    for prefix, built_in in _BUILT_IN:
        code[np.isin(code, [row for row, text in enumerate(recording.names) if text.startswith(prefix)])] = built_in
    return code


def _outermost_range(axis: ThreadAxis, first: Ints, last: Ints) -> Ints:
    """A number for each ``[first, last]``, the same for those inside one outermost range; its own for one in none.

    Ranges that overlap count as one.
    """
    start, reach = axis.range_start[axis.ends_here], np.maximum.accumulate(axis.range_end[axis.ends_here])
    fresh = start >= np.append(NOWHERE, reach[:-1])
    ends = reach[np.flatnonzero(np.append(fresh, True))[1:] - 1]
    row = np.searchsorted(start[fresh], first, side="right") - 1
    inside = (row >= 0) & (np.append(ends, NOWHERE)[row] >= last)
    return np.where(inside, row, -1 - np.arange(first.size))


def _candidates(captures: Sequence[_Captured], replays: Sequence[_Replay]) -> list[frozenset[int]]:
    """For each replay the graph captures that may have made its graph and are not distinguished; none if unknown."""
    batches: dict[_Key, list[list[int]]] = defaultdict(list)
    for batch in _groups([one.group for one in captures]):
        batches[captures[batch[0]].key].append(batch)
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for step in _groups([one.group for one in replays]):
        turns = _turns([replays[row] for row in step])
        likely = (batch for key in {*turns[0].keys} for batch in batches[key])
        for batch in (batch for batch in likely if _replayed(captures, batch, turns)):
            for turn, row in zip(turns, cycle(batch)):
                found[turn.graph].add(row)
    possible = [frozenset(found[one.graph]) for one in replays]
    # A graph always runs the same, so that without ids those that ran the same may be one graph.
    graphs = {(rows, one.graph if one.graph[0] >= 0 else one.keys) for rows, one in zip(possible, replays, strict=True)}
    number = Counter(rows for rows, _ in graphs)
    return [
        frozenset(row for row in rows if number[rows] <= len(rows) and captures[row].key in one.keys)
        for rows, one in zip(possible, replays, strict=True)
    ]


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for row, number in enumerate(numbers):
        groups[number].append(row)
    return [*groups.values()]


def _turns(step: Sequence[_Replay]) -> Sequence[_Replay]:
    """What a step replayed; of graphs with ids each one once, in the order of ids, which is that of graph captures."""
    if not all(one.graph[0] >= 0 for one in step):
        return step
    # A replay that ran less than others of its graph was not recorded whole.
    by_size = sorted(step, key=lambda one: one.nodes.size)
    return [one for _, one in sorted({one.graph: one for one in by_size}.items())]


def _replayed(captures: Sequence[_Captured], batch: Sequence[int], turns: Sequence[_Replay]) -> bool:
    """Whether the replays of a step can be those of a batch of graph captures, in its order."""
    if len(turns) == len(batch) == 1 or all(one.graph[0] >= 0 for one in turns):
        ordered = len(turns) == len(batch)
    else:
        different = 1 in Counter(captures[row].key for row in batch).values() if len(batch) > 1 else len(captures) == 1
        ordered = different and len(turns) % len(batch) == 0
    return ordered and all(
        capture.key in turn.keys and capture.end_ns <= turn.start_ns and (turn.numbered or not capture.forked)
        for turn, capture in zip(turns, (captures[row] for row in cycle(batch)), strict=False)
    )
