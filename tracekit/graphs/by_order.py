"""Where the nodes of a CUDA graph were captured, by order: a replay runs what its graph capture launched, one for one.

There is one rule: what one outermost range (a step) replays are, graph by graph, the same kernels, copies and memsets
in the same order as all that was captured inside one outermost range before, once or again and again. Several graphs
without ids must differ, or their order proves nothing. Where several graph captures fit, a node has its place if they
all had the same module there (``label``): then its module is known, not its call.

It is asked only where no making of graphs is recorded (Chrome traces). Reports that record it have the places of nodes
from their records, or lack them, and their calls name no kernels.

The order of a replay is that of the ids of its nodes; without ids, only that of a single stream is certain, and only
if no stream waited for another during the graph capture. Names are compared where calls record the kernel that they
launch (ROCm), else kinds. More graphs than graph captures that fit show that some were not recorded: none is certain.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from operator import contains
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import BEGINS_CAPTURE, GRAPH_LAUNCH, is_batch, kinds_of, launches_named, roles_of
from tracekit.graphs.captures import GraphEvidence, Origins
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import GRAPH, KERNEL, MEMCPY, MEMSET, WORK_KINDS, Recording

#: What a node does: copies and memsets by these codes, kernels by the row of their name.
_NAMELESS, _COPY, _SET = -1, -2, -3
_CODES = {KERNEL: _NAMELESS, MEMCPY: _COPY, MEMSET: _SET}
#: ROCm copies and sets memory with kernels of these names.
_BUILT_IN = (("__amd_rocclr_copyBuffer", _COPY), ("__amd_rocclr_fillBuffer", _SET))
_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent")
#: Calls that add nodes by hand, so that not all nodes are launches.
_ADDS = ("cudaGraphAdd", "cuGraphAdd", "hipGraphAdd")
#: Newer ids of nodes carry the graph or its instance above this bit.
_GRAPH_BIT = 32


#: A process, and codes as bytes.
_Key = tuple[int, bytes]


class _Captured(NamedTuple):
    """The launches of a graph capture, in order, and a number for the outermost range around it.

    It is forked if a stream waited for another. Kernels have names in ``codes`` if all have.
    """

    process: int
    end_ns: int
    start: Ints
    end: Ints
    codes: Ints
    label: Ints
    forked: bool
    group: int

    @property
    def key(self) -> _Key:
        """The same for graph captures of the same kernels in the same order."""
        return self.process, self.codes.tobytes()


class _Replay(NamedTuple):
    """What one launch of a graph ran, in order, and a number for the outermost range around it.

    Attributes:
        graph: The id of its graph, or -1.
        fitting: The keys of graph captures that fit, with the names of kernels and without.
        numbered: Whether all of it names its nodes.
    """

    launch: int
    process: int
    start_ns: int
    graph: int
    nodes: Rows
    codes: Ints
    fitting: tuple[_Key, _Key]
    numbered: bool
    group: int

    @property
    def instance(self) -> tuple[int, int]:
        """The same for replays that are known to be of one graph."""
        return (self.process, self.graph) if self.graph >= 0 else (-1, self.launch)

    @property
    def graph_or_codes(self) -> object:
        """Different only for replays that are known to be of different graphs, since a graph always runs the same."""
        return self.instance if self.graph >= 0 else self.fitting[0]


#: Positions of graph captures that may have made a graph.
_Candidates = frozenset[int]


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
    """The graph captures all of whose launches are known and become one node each, in order."""
    recording, axis = known.recording, known.axis
    windows, submissions = known.captures.windows, known.captures.submissions
    kind = kinds_of(submissions.role)
    rows = np.flatnonzero(known.captures.captured & (kind >= 0))
    low, high = (np.searchsorted(submissions.start[rows], edge) for edge in (windows.opened, windows.closed))
    forked, unclear = (_with_call(known, calls) for calls in (launches_named(recording, _WAITS), _not_one_node(known)))
    thread = recording.launches.thread[np.searchsorted(axis.launch_start, windows.begin)]
    group = _outermost_range(axis, windows.begin, windows.end, thread).tolist()
    code = np.array([_CODES.get(one, _NAMELESS) for one in range(int(kind.max(initial=0)) + 1)])[kind]
    for window in np.flatnonzero(windows.isolated & (high > low) & ~unclear).tolist():
        own = rows[low[window] : high[window]]
        launch, codes = submissions.row[own], code[own]
        kernels = codes == _NAMELESS
        if (recording.launches.kernel[launch[kernels]] >= 0).all():
            codes[kernels] = recording.launches.kernel[launch[kernels]]
        yield _Captured(
            process=int(submissions.process[own[0]]),
            end_ns=int(recording.launches.end_ns[launch[-1]]),
            start=submissions.start[own],
            end=submissions.end[own],
            codes=codes.astype(np.int64),
            label=label[launch],
            forked=bool(forked[window]),
            group=group[window],
        )


def _not_one_node(known: GraphEvidence) -> Flags:
    submissions = known.captures.submissions
    unclear = launches_named(known.recording, _ADDS)
    several = (submissions.role == GRAPH_LAUNCH) | is_batch(known.recording, submissions.row)
    unclear[submissions.row[several & ~submissions.worked]] = True
    return unclear


def _with_call(known: GraphEvidence, calls: Flags) -> Flags:
    rows = np.flatnonzero(calls)
    window = known.captures.windows.at(known.axis.launch_start[rows], known.axis.launch_end[rows])
    held = np.zeros(known.captures.windows.begin.size + 1, dtype=bool)
    held[window] = True
    return held[:-1]


def _replays_of(known: GraphEvidence, launch: Rows, pending: Flags) -> Iterator[_Replay]:
    """The replays of graphs with nodes that lack a place, by launch; those whose order is certain."""
    work, launches, axis = known.recording.work, known.recording.launches, known.axis
    rows = np.flatnonzero((known.chains.of_work >= 0) & (launch >= 0))
    rows = rows[np.isin(launch[rows], launch[rows[pending[known.chains.of_work[rows]]]])]
    rows = rows[np.lexsort((work.start_ns[rows], launch[rows]))]
    codes, nodes, ids = _codes(known.recording)[rows], known.chains.of_work[rows], work.graph_node_id[rows]
    first, of = np.unique(launch[rows], return_index=True)[1], launch[rows]
    group = _outermost_range(
        axis, axis.launch_start[of[first]], axis.launch_end[of[first]], launches.thread[of[first]]
    ).tolist()
    for rows_of, number in zip(np.split(np.arange(rows.size), first[1:]) if rows.size else (), group, strict=True):
        order = _in_order(ids[rows_of], work.stream[rows[rows_of]])
        if order is None:
            continue
        part = rows_of[order]
        process, graphs = int(work.process[rows[part[0]]]), {*work.graph_id[rows[part]].tolist()}
        graphs = (graphs | {*(ids[part] >> _GRAPH_BIT).tolist()}) - {0, -1}
        yield _Replay(
            launch=int(of[part[0]]),
            process=process,
            start_ns=int(launches.start_ns[of[part[0]]]),
            graph=graphs.pop() if len(graphs) == 1 else -1,
            nodes=nodes[part],
            codes=codes[part],
            fitting=((process, codes[part].tobytes()), (process, np.minimum(codes[part], _NAMELESS).tobytes())),
            numbered=bool((ids[part] >= 0).all()),
            group=number,
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
    of_kind = np.full(len(WORK_KINDS), _NAMELESS, dtype=np.int64)
    of_kind[list(_CODES)] = list(_CODES.values())
    code: Ints = np.where((kind == KERNEL) & (name >= 0), name, of_kind[kind])
    for prefix, built_in in _BUILT_IN:
        rows = [row for row, text in enumerate(recording.names) if text.startswith(prefix)]
        if rows:
            code[np.isin(code, rows)] = built_in
    return code


def _outermost_range(axis: ThreadAxis, first: Ints, last: Ints, thread: Rows) -> Ints:
    """A number for each ``[first, last]``, the same for those inside one outermost range.

    Those of one thread that lie in no range have a negative number of their own. Ranges that overlap count as one.
    """
    start, end = axis.range_start[axis.ends_here], axis.range_end[axis.ends_here]
    reach = np.maximum.accumulate(end)
    fresh = np.ones(start.size, dtype=bool)
    fresh[1:] = start[1:] >= reach[:-1]
    begins = start[fresh]
    ends = reach[np.append(fresh[1:], True)] if start.size else end
    row = np.searchsorted(begins, first, side="right") - 1
    inside = (row >= 0) & (np.append(ends, first.min(initial=0) - 1)[row] >= last)
    return np.where(inside, row, -1 - thread)


def _candidates(captures: Sequence[_Captured], replays: Sequence[_Replay]) -> list[_Candidates]:
    """For each replay the graph captures that may have made its graph and cannot be distinguished; none if unknown."""
    batches = _groups([one.group for one in captures])
    steps = _groups([one.group for one in replays])
    by_key: dict[_Key, list[int]] = defaultdict(list)
    for row, one in enumerate(captures):
        by_key[one.key].append(row)
    first = {batch[0]: batch for batch in batches}
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for step in steps:
        turns = _turns([replays[at] for at in step])
        fits = [_fitting(captures, by_key, turn) for turn in turns]
        whole = (first[row] for row in fits[0] if row in first and _whole(captures, first[row], turns))
        for chosen in ([*islice(cycle(batch), len(turns))] for batch in whole):
            for turn, row in zip(turns, chosen, strict=True) if all(map(contains, fits, chosen)) else ():
                found[turn.instance].add(row)
    likely = [frozenset(found[one.instance]) for one in replays]
    graphs = Counter(rows for rows, _ in {*zip(likely, (one.graph_or_codes for one in replays), strict=True)})
    return [
        frozenset(row for row in rows if graphs[rows] <= len(rows) and captures[row].key in one.fitting)
        for rows, one in zip(likely, replays, strict=True)
    ]


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    """The positions in each range; what is in no range (a negative number) stands alone."""
    groups: dict[int, list[int]] = {}
    for at, number in enumerate(numbers):
        groups.setdefault(number if number >= 0 else -1 - at, []).append(at)
    return [*groups.values()]


def _turns(step: Sequence[_Replay]) -> Sequence[_Replay]:
    """What a step replayed; of graphs with ids each one once, in the order of ids, which is that of graph captures."""
    if any(one.graph < 0 for one in step):
        return step
    # A replay that ran less than others of its graph was not recorded whole.
    by_size = sorted(step, key=lambda one: one.codes.size)
    return [one for _, one in sorted({one.graph: one for one in by_size}.items())]


def _fitting(captures: Sequence[_Captured], by_key: dict[_Key, list[int]], replay: _Replay) -> _Candidates:
    rows = (row for key in {*replay.fitting} for row in by_key[key])
    return frozenset(
        row for row in rows if captures[row].end_ns <= replay.start_ns and (replay.numbered or not captures[row].forked)
    )


def _whole(captures: Sequence[_Captured], batch: Sequence[int], turns: Sequence[_Replay]) -> bool:
    """Whether the replays of a step can be those of a batch of graph captures, in its order, by their number."""
    if len(turns) == len(batch) == 1 or all(one.graph >= 0 for one in turns):
        return len(turns) == len(batch)
    alike = Counter(captures[row].key for row in batch)
    ordered = 1 in alike.values() if len(batch) > 1 else len(captures) == 1
    return len(turns) % len(batch) == 0 and ordered
