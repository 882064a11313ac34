"""Where nodes were captured in recordings of a format that records no making of graphs, as Chrome traces are.

Nothing there links a replay to the graph capture that made the graph. What is known: both are of one process, the graph
capture came first, and the replay runs what was captured, in its order. A graph capture *agrees* with a replay if all
of that holds. A trace of ROCm names the kernel of every launch, one of CUDA does not: there, only kinds and number can
agree. Without ids of nodes, the order is certain only in a graph that is a chain: no stream waited for another while it
was captured.

Of several graph captures that agree, the one in the replay's place made the graph: a model in pieces captures a graph
for each and replays them in order, so what was replayed inside one range (a step) must be just what was captured inside
one range, in the same order and with none left out. A graph capture makes one graph. If several are left, such as those
of a model for several batch sizes, a node is placed if they all had the same module there (``label``). Then its module
is known, not its call.

More graphs than graph captures of a sequence show that some graph captures were not recorded: none of these is certain.
Without ids of graphs, replays that ran other kernels are of other graphs; and more replays in one range than graph
captures may be, so that only their order counts, unless there is one graph capture in all.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import contains
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import agreed
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import BEGINS_CAPTURE, GRAPH_LAUNCH, is_batch, launches_named, roles_of
from tracekit.graphs.captures import CapturedLaunches, GraphEvidence, Origins, captured_launches
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
_UNPLACED = -2
#: Process and id of a graph; without an id, each replay may be that of another graph, and has its position.
_Graph = tuple[int, ...]
#: Positions of graph captures that may have made a graph.
_Candidates = frozenset[int]
_NONE: _Candidates = frozenset()


class _Replay(NamedTuple):
    """What one launch of a graph ran, in the order in which it ran; ``graph`` is -1 without an id."""

    launch: int
    process: int
    start_ns: int
    graph: int
    nodes: Rows
    codes: Ints
    #: Positions among the nodes in the order of ids, which is that of their graph capture: of all nodes, or of the
    #: kernels if only these have ids; None if some kernels have none.
    by_id: Rows | None
    #: Whether nothing contradicts that the nodes were captured in the order in which they ran: no id or, where there
    #: are none, no second stream with kernels.
    linear: bool

    @property
    def sequence(self) -> tuple[int, bytes, bytes]:
        """Equal for replays of one process that ran the same in the same order."""
        return self.process, self.codes.tobytes(), b"" if self.by_id is None else self.by_id.tobytes()


class _Captured(NamedTuple):
    """What the launches of a graph capture would have run; it is forked if a stream waited for another."""

    launches: CapturedLaunches
    codes: Ints
    label: Ints
    forked: bool


def unnumbered_work(recording: Recording, launch: Rows) -> Rows | None:
    """Rows of replayed kernels that name no node; None if no graph capture can show where they come from."""
    if recording.records_graphs:
        return None
    role = roles_of(recording)
    if not (role == BEGINS_CAPTURE).any():
        return None
    return np.flatnonzero(_replayed(recording, launch, role) & (recording.work.graph_node_id == -1))


def match_by_sequence(known: GraphEvidence, launch: Rows, label: Ints) -> Origins:
    """The places where nodes were captured, where that is certain; launches in one module have the same ``label``."""
    origins = known.origins
    captures = kernel_sequences(known, label) if known.captures.windows.isolated.any() else []
    if not captures:
        return origins
    replays = list(_replays_of(known, launch))
    if not replays:
        return origins
    pending = ~origins.known & _always_the_same(known.chains.root.size, replays)
    start, end = origins.start.copy(), origins.end.copy()
    by_order, shared = origins.by_order.copy(), origins.shared.copy()
    places: dict[tuple[object, _Candidates], tuple[Rows, Ints, Ints]] = {}
    for replay, candidates in zip(replays, _candidates(known, captures, replays), strict=True):
        if not candidates:
            continue
        key = replay.sequence, candidates
        if key not in places:
            places[key] = _agreed_places([captures[position] for position in sorted(candidates)], replay)
        placed, first, last = places[key]
        nodes = replay.nodes[placed]
        new = pending[nodes]
        nodes = nodes[new]
        start[nodes], end[nodes] = first[new], last[new]
        by_order[nodes], shared[nodes] = True, len(candidates) > 1
    return Origins(start, end, by_order, shared)


def kernel_sequences(known: GraphEvidence, label: Ints) -> list[_Captured]:
    """The graph captures all of whose launches are known, in the order in which they ended; ``label`` as above."""
    recording, windows = known.recording, known.captures.windows
    forked, unclear = (_with_call(known, calls) for calls in (launches_named(recording, _WAITS), _not_one_node(known)))
    captures = [one for one in captured_launches(known) if not unclear[one.window]]
    found = []
    for one in sorted(captures, key=lambda one: (one.end_ns, windows.begin[one.window])):
        kinds = np.frombuffer(one.kinds, dtype=np.int8)
        kernel = np.maximum(recording.launches.kernel[one.launch], _NAMELESS)
        codes = np.where(kinds == KERNEL, kernel, np.where(kinds == MEMCPY, _COPY, _SET))
        found.append(_Captured(one, codes.astype(np.int64), label[one.launch], bool(forked[one.window])))
    return found


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


def _replays_of(known: GraphEvidence, launch: Rows) -> Iterator[_Replay]:
    recording, work = known.recording, known.recording.work
    rows = np.flatnonzero(_replayed(recording, launch, roles_of(recording)))
    rows = rows[np.lexsort((work.start_ns[rows], launch[rows]))]
    codes, nodes = _codes(recording)[rows], known.chains.of_work[rows]
    ids, graph, stream = work.graph_node_id[rows], work.graph_id[rows], work.stream[rows]
    start_ns = recording.launches.start_ns
    bounds = np.flatnonzero(np.diff(launch[rows])) + 1
    for part in np.split(np.arange(rows.size), bounds) if rows.size else ():
        row = int(launch[rows[part[0]]])
        by_id = _by_id(ids[part], codes[part])
        if by_id is None or _streams_agree(by_id, stream[part]):
            graphs = np.unique(graph[part][graph[part] >= 0])
            yield _Replay(
                launch=row,
                process=int(known.chains.process[nodes[part[0]]]),
                start_ns=int(start_ns[row]),
                graph=int(graphs[0]) if graphs.size == 1 else -1,
                nodes=nodes[part],
                codes=codes[part],
                by_id=by_id,
                linear=_linear(by_id, stream[part][codes[part] >= _NAMELESS]),
            )


def _replayed(recording: Recording, launch: Rows, role: Ints) -> Flags:
    whole = recording.work.kind == GRAPH
    by_graph = np.append(role == GRAPH_LAUNCH, False)[launch]
    return np.asarray(by_graph & ~whole & (recording.work.process >= 0))


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


def _by_id(ids: Ints, codes: Ints) -> Rows | None:
    # Kineto has given ids to kernels before it gave them to copies.
    some = np.arange(ids.size) if (ids != -1).all() else np.flatnonzero(codes >= _NAMELESS)
    own = ids[some]
    if not some.size or (own == -1).any() or np.unique(own).size < own.size:
        return None
    return some[np.argsort(own)]


def _linear(by_id: Rows | None, stream_of_kernels: Ints) -> bool:
    if by_id is None:
        return bool((stream_of_kernels[1:] == stream_of_kernels[:-1]).all())
    return bool((np.diff(by_id) > 0).all())


def _streams_agree(by_id: Rows, stream: Ints) -> bool:
    order = np.lexsort((by_id, stream[by_id]))
    place = np.empty(stream.size, dtype=np.int64)
    place[by_id] = np.arange(by_id.size)
    at = by_id[order]
    same = stream[at[1:]] == stream[at[:-1]]
    return bool((place[at[1:]] > place[at[:-1]])[same].all())


def _agreement(captured: _Captured, replay: _Replay) -> tuple[Rows, Rows] | None:
    """Positions of nodes of a replay, and of the launch that each was; None if the replay ran anything else."""
    if captured.launches.process != replay.process or captured.codes.size != replay.codes.size:
        return None
    every = np.arange(captured.codes.size)
    if replay.linear and not captured.forked:
        return (every, every) if _same(captured.codes, replay.codes) else None
    if replay.by_id is None:
        return None
    # Where streams fork, only ids give the order; what has none may be anywhere.
    some = every if replay.by_id.size == every.size else every[captured.codes >= _NAMELESS]
    if some.size != replay.by_id.size or not _same(captured.codes[some], replay.codes[replay.by_id]):
        return None
    others = np.delete(captured.codes, some), np.delete(replay.codes, replay.by_id)
    return (replay.by_id, some) if np.array_equal(np.sort(others[0]), np.sort(others[1])) else None


def _same(captured: Ints, replayed: Ints) -> bool:
    nameless = (captured == _NAMELESS) & (replayed >= _NAMELESS)
    return bool(((captured == replayed) | nameless).all())


def _agreed_places(captures: list[_Captured], replay: _Replay) -> tuple[Rows, Ints, Ints]:
    """The nodes whose launches have one label in all of some graph captures; where these began and ended."""
    pairs = [_agreement(captured, replay) for captured in captures]
    labels = np.full((len(captures), replay.codes.size), _UNPLACED, dtype=np.int64)
    launches = np.zeros(replay.codes.size, dtype=np.int64)
    for row, (captured, pair) in enumerate(zip(captures, pairs, strict=True)):
        if pair is not None:
            labels[row, pair[0]] = captured.label[pair[1]]
            launches[pair[0]] = pair[1] if row == 0 else launches[pair[0]]
    nodes = np.flatnonzero((labels == labels[0]).all(axis=0) & (labels[0] > _UNPLACED))
    first = captures[0].launches
    return nodes, first.start[launches[nodes]], first.end[launches[nodes]]


def _always_the_same(nodes: int, replays: list[_Replay]) -> Flags:
    nothing = np.iinfo(np.int64).min
    node, code = (np.concatenate(column) for column in zip(*((one.nodes, one.codes) for one in replays), strict=True))
    return np.asarray(agreed(node, code, nodes, missing=nothing) != nothing)


def _candidates(known: GraphEvidence, captures: list[_Captured], replays: list[_Replay]) -> list[_Candidates]:
    """For each replay the graph captures that may have made its graph and cannot be distinguished; none if unknown."""
    graph: list[_Graph] = [
        (one.process, one.graph) if one.graph >= 0 else (position,) for position, one in enumerate(replays)
    ]
    by_graph = _of_graphs(known, captures, replays, graph)
    batches = _batches(known, captures)
    single = known.captures.windows.begin.size == 1 and all(by_graph.values())
    in_place: dict[_Graph, dict[_Candidates, None]] = {}
    chosen: dict[tuple[bool, tuple[_Candidates, ...]], list[_Candidates]] = {}
    for graphs in (part for group in _groups(known, replays) for part in _rising([graph[row] for row in group])):
        numbered = all(len(one) > 1 for one in graphs)
        sequence = tuple(by_graph[one] for one in graphs)
        if (numbered, sequence) not in chosen:
            in_order = _in_order(sequence, batches, numbered=numbered) if all(sequence) else []
            # Of a single graph capture, with which every replay agrees, all replays are repetitions.
            otherwise = sequence if numbered or single else [_NONE] * len(sequence)
            chosen[numbered, sequence] = in_order if any(in_order) else [*otherwise]
        for one, candidates in zip(graphs, chosen[numbered, sequence], strict=True):
            in_place.setdefault(one, {by_graph[one]: None})[candidates] = None
    places = {one: tuple(sets) for one, sets in in_place.items()}
    common = {sets: frozenset.intersection(*sets) for sets in dict.fromkeys(places.values())}
    settled = _each_its_own({one: common[sets] for one, sets in places.items()})
    return [settled[one] for one in graph]


def _rising(graphs: list[_Graph]) -> Iterator[list[_Graph]]:
    """The graphs of one range, each once; where ids do not rise, in parts in which they do."""
    once = [*dict.fromkeys(graphs)]
    if any(len(one) == 1 for one in once) or once == sorted(once):
        yield once
        return
    falls = [at for at in range(1, len(graphs)) if graphs[at] <= graphs[at - 1]]
    yield from (graphs[start:end] for start, end in pairwise([0, *falls, len(graphs)]))


def _groups(known: GraphEvidence, replays: list[_Replay]) -> list[list[int]]:
    axis, rows = known.axis, np.array([one.launch for one in replays], dtype=np.int64)
    thread = known.recording.launches.thread[rows]
    return _equal(_outermost_range(axis, axis.launch_start[rows], axis.launch_end[rows], thread))


def _batches(known: GraphEvidence, captures: list[_Captured]) -> list[list[int]]:
    order = sorted(range(len(captures)), key=lambda position: int(captures[position].launches.start[0]))
    windows, launches = known.captures.windows, [captures[position].launches for position in order]
    rows = np.array([one.window for one in launches], dtype=np.int64)
    thread = known.recording.launches.thread[np.array([one.launch[0] for one in launches], dtype=np.int64)]
    groups = _equal(_outermost_range(known.axis, windows.begin[rows], windows.end[rows], thread))
    return [[order[place] for place in group] for group in groups]


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


def _equal(numbers: Ints) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for position, one in enumerate(numbers.tolist()):
        groups.setdefault(one, []).append(position)
    return list(groups.values())


def _of_graphs(
    known: GraphEvidence, captures: list[_Captured], replays: list[_Replay], graph: list[_Graph]
) -> dict[_Graph, _Candidates]:
    """For each graph the graph captures that agree with its replays; none if there are more graphs than these.

    A replay that ran less than others of its graph was not recorded whole, and proves nothing.
    """
    keys = [replay.sequence for replay in replays]
    agreeing = {
        key: [row for row, captured in enumerate(captures) if _agreement(captured, replay) is not None]
        for key, replay in dict(zip(keys, replays, strict=True)).items()
    }
    longest: Counter[_Graph] = Counter()
    for one, replay in zip(graph, replays, strict=True):
        longest[one] = max(longest[one], replay.codes.size)
    ended_ns, first_ns = [captured.launches.end_ns for captured in captures], known.recording.first_replays
    # Thousands of replays agree with the same graph captures: each such set is kept once.
    earlier: dict[tuple[object, int], _Candidates] = {}
    found: dict[_Graph, _Candidates] = {}
    runs: dict[_Graph, object] = {}
    for one, replay, key in zip(graph, replays, keys, strict=True):
        before_ns = min(replay.start_ns, first_ns.get((replay.process, replay.graph), replay.start_ns))
        number = bisect_right(ended_ns, before_ns)
        if (key, number) not in earlier:
            earlier[key, number] = frozenset(row for row in agreeing[key] if row < number)
        if replay.codes.size == longest[one]:
            fit = earlier[key, number]
            found[one] = fit if found.get(one, fit) is fit else found[one] & fit
            # Without an id, what ran distinguishes graphs: a graph runs the same every time.
            runs[one] = one if replay.graph >= 0 else key
    graphs = Counter(candidates for candidates, _ in {(found[one], run) for one, run in runs.items()})
    return {one: _NONE if graphs[candidates] > len(candidates) else candidates for one, candidates in found.items()}


def _in_order(
    sequence: Sequence[_Candidates], batches: Sequence[Sequence[int]], *, numbered: bool
) -> list[_Candidates]:
    """For each replay of a sequence the graph captures in its place, of all batches that fit; none if none fits.

    Unless ids show (``numbered``) that the graphs differ and were captured in this order, a batch fits only if one of
    its graph captures is unlike all others: a sequence of like graphs would fit in any order. Where a sequence may also
    be a part of another batch, or put together of shorter ones, those graph captures are left, too.
    """
    fitting = [_fitting(sequence, batch, numbered=numbered) for batch in batches]
    passes = [chosen for of_batch in fitting for chosen in of_batch]
    if not passes:
        return []
    rest = [batch for batch, of_batch in zip(batches, fitting, strict=True) if not of_batch]
    longer = [batch for batch in rest if len(batch) >= len(sequence)]
    shorter = [capture for batch in rest if len(batch) < len(sequence) for capture in batch]
    parts = ({one: one.intersection(batch) for one in {*sequence}} for batch in (*longer, shorter))
    others = [part for part in parts if all(part.values())]
    return [
        frozenset(chosen[place] for chosen in passes).union(*(part[candidates] for part in others))
        for place, candidates in enumerate(sequence)
    ]


def _fitting(sequence: Sequence[_Candidates], batch: Sequence[int], *, numbered: bool) -> list[Sequence[int]]:
    """The places that the replays may have in a batch: it is made of such passes, or they of passes through it."""
    size, passes = len(sequence), []
    if len(batch) % size == 0:
        passes = [batch[start : start + size] for start in range(0, len(batch), size)]
    elif size % len(batch) == 0 and len(batch) > 1 and not numbered:
        passes = [[*batch] * (size // len(batch))]
    if not passes:
        return []
    anchored = numbered or any(len(one.intersection(batch)) == 1 for one in {*sequence})
    fit = anchored and all(all(map(contains, sequence, chosen)) for chosen in passes)
    return passes if fit else []


def _each_its_own(candidates: dict[_Graph, _Candidates]) -> dict[_Graph, _Candidates]:
    """Takes the graph captures that certainly made one graph from all others. Two that claim one are both unknown.

    Graphs without an id may be one, and claim nothing.
    """
    while True:
        graphs = Counter(rows for one, rows in candidates.items() if len(one) > 1)
        claims: Counter[_Candidates] = Counter({rows: graphs[rows] for rows in graphs if len(rows) == 1})
        taken = _NONE.union(*(rows for rows, number in claims.items() if number == 1))
        left = {rows: rows - taken if len(rows) > 1 else rows if graphs[rows] == 1 else _NONE for rows in graphs}
        settled = {one: left[rows] if len(one) > 1 else rows for one, rows in candidates.items()}
        if settled == candidates:
            return settled
        candidates = settled
