"""Where nodes were captured in recordings of a format that records no making of graphs, as Chrome traces are.

Nothing there links a replay to the graph capture that made the graph. What is known: both are of one process, the graph
capture came first, and the replay runs what was captured, in its order. A graph capture *agrees* with a replay if all
of that holds (:mod:`~tracekit.graphs.shapes`). Of several that agree, the one in the replay's place in the sequence of
replays made the graph (:mod:`~tracekit.graphs.sequences`); a graph capture makes one graph. If several are left, such
as those of a model for several batch sizes, a node is placed if they all had the same module there (``label``). Then
its module is known, not its call.

More graphs than graph captures of a shape show that some graph captures were not recorded: none of these is certain.
Without ids of graphs, replays that ran other kernels are of other graphs; and more replays in one range than graph
captures may be, unless there is one graph capture in all, and every replay agrees with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import agreed
from tracekit.graphs.origins import Origins
from tracekit.graphs.replays import replays_of
from tracekit.graphs.sequences import groups_of, placed, surroundings
from tracekit.graphs.shapes import agreement, shapes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.origins import GraphEvidence
    from tracekit.graphs.replays import Replay
    from tracekit.graphs.sequences import Candidates
    from tracekit.graphs.shapes import Shape

_NONE: Candidates = frozenset()
_UNPLACED = -2
#: Process and id of a graph; without an id, each replay may be that of another graph, and has its position.
Graph = tuple[int, ...]


class _Agreed(NamedTuple):
    """Nodes of a replay and the launches that became them, of graph captures that cannot be told apart.

    Attributes:
        nodes: Positions among the nodes of the replay.
        start: Starts of the launches on the axis.
        end: Their ends.
        shared: Whether there are several such graph captures.
    """

    nodes: Rows
    start: Ints
    end: Ints
    shared: bool


def completed(known: GraphEvidence, launch: Rows, label: Ints) -> Origins:
    """The places where nodes were captured, where that is certain.

    Args:
        known: What is known about the recording's graphs.
        launch: Row of the launch of every piece of work, or -1.
        label: For every launch a number, the same for launches in the same module.
    """
    origins = known.origins
    shapes = shapes_of(known, label) if known.captures.windows.alone.any() else []
    if not shapes:
        return origins
    replays = list(replays_of(known, launch))
    settled = origins.known | _unlike(known.lineage.root.size, replays)
    start, end, by_order, shared = (
        origins.start.copy(),
        origins.end.copy(),
        origins.by_order.copy(),
        origins.shared.copy(),
    )
    for replay, place in _places(known, shapes, replays):
        nodes = replay.nodes[place.nodes]
        pending = ~settled[nodes]
        nodes = nodes[pending]
        start[nodes], end[nodes] = place.start[pending], place.end[pending]
        by_order[nodes], shared[nodes] = True, place.shared
    return Origins(start, end, by_order, shared)


def _places(known: GraphEvidence, shapes: list[Shape], replays: list[Replay]) -> Iterator[tuple[Replay, _Agreed]]:
    """The replays of graphs that are known, each with the places of its nodes."""
    places: dict[tuple[object, Candidates], _Agreed] = {}
    for replay, candidates in zip(replays, _candidates(known, shapes, replays), strict=True):
        key = replay.shape, candidates
        if candidates and key not in places:
            places[key] = _agreed([shapes[position] for position in sorted(candidates)], replay)
        if candidates:
            yield replay, places[key]


def _agreed(shapes: list[Shape], replay: Replay) -> _Agreed:
    """The nodes whose launches have one label in all of some graph captures."""
    pairs = [agreement(shape, replay) for shape in shapes]
    labels = np.full((len(shapes), replay.codes.size), _UNPLACED, dtype=np.int64)
    launches = np.zeros(replay.codes.size, dtype=np.int64)
    for row, (shape, pair) in enumerate(zip(shapes, pairs, strict=True)):
        if pair is not None:
            labels[row, pair[0]] = shape.label[pair[1]]
            launches[pair[0]] = pair[1] if row == 0 else launches[pair[0]]
    nodes = np.flatnonzero((labels == labels[0]).all(axis=0) & (labels[0] > _UNPLACED))
    first = shapes[0].capture
    return _Agreed(nodes, first.start[launches[nodes]], first.end[launches[nodes]], len(shapes) > 1)


def _unlike(nodes: int, replays: list[Replay]) -> Flags:
    """Which nodes did not always do the same."""
    if not replays:
        return np.zeros(nodes, dtype=bool)
    node, code = (np.concatenate(column) for column in zip(*((one.nodes, one.codes) for one in replays), strict=True))
    nothing = np.iinfo(np.int64).min
    always = agreed(node, code, nodes, missing=nothing)
    unlike = np.zeros(nodes, dtype=bool)
    unlike[node] = always[node] == nothing
    return unlike


def _candidates(known: GraphEvidence, shapes: list[Shape], replays: list[Replay]) -> list[Candidates]:
    """For each replay the graph captures that may have made its graph and cannot be told apart; none if unknown."""
    graph: list[Graph] = [
        (one.process, one.graph) if one.graph >= 0 else (position,) for position, one in enumerate(replays)
    ]
    by_graph = _of_graphs(known, shapes, replays, graph)
    batches = _batches(known, shapes)
    alone = known.captures.windows.begin.size == 1 and all(by_graph.values())
    in_place: dict[Graph, dict[Candidates, None]] = {}
    chosen: dict[tuple[bool, tuple[Candidates, ...]], list[Candidates]] = {}
    for graphs in (part for group in _groups(known, replays) for part in _rising([graph[row] for row in group])):
        numbered = all(len(one) > 1 for one in graphs)
        sequence = tuple(by_graph[one] for one in graphs)
        if (numbered, sequence) not in chosen:
            # Of one graph capture alone, with which every replay agrees, all replays are repetitions.
            by_shape = [*sequence] if numbered or alone else _in_any_order(sequence, batches)
            chosen[numbered, sequence] = _in_order(sequence, batches, numbered=numbered) or by_shape
        for one, candidates in zip(graphs, chosen[numbered, sequence], strict=True):
            in_place.setdefault(one, {by_graph[one]: None})[candidates] = None
    places = {one: tuple(sets) for one, sets in in_place.items()}
    common = {sets: frozenset.intersection(*sets) for sets in dict.fromkeys(places.values())}
    settled = _each_its_own({one: common[sets] for one, sets in places.items()})
    return [settled[one] for one in graph]


def _rising(graphs: list[Graph]) -> Iterator[list[Graph]]:
    """The graphs of one range, each once; where ids do not rise, in parts in which they do."""
    once = [*dict.fromkeys(graphs)]
    if any(len(one) == 1 for one in once) or once == sorted(once):
        yield once
        return
    falls = [at for at in range(1, len(graphs)) if graphs[at] <= graphs[at - 1]]
    yield from (graphs[start:end] for start, end in pairwise([0, *falls, len(graphs)]))


def _groups(known: GraphEvidence, replays: list[Replay]) -> list[list[int]]:
    """Positions of the replays in each outermost range."""
    axis, rows = known.axis, np.array([one.launch for one in replays], dtype=np.int64)
    thread = integers(known.recording.launches, "thread")[rows]
    return groups_of(surroundings(axis, axis.launch_start[rows], axis.launch_end[rows], thread).tolist())


def _batches(known: GraphEvidence, shapes: list[Shape]) -> list[list[int]]:
    """Positions of the graph captures in each outermost range, one after the other."""
    order = sorted(range(len(shapes)), key=lambda position: int(shapes[position].capture.start[0]))
    windows = known.captures.windows
    rows = np.array([shapes[position].capture.window for position in order], dtype=np.int64)
    launches = np.array([shapes[position].capture.launch[0] for position in order], dtype=np.int64)
    thread = integers(known.recording.launches, "thread")[launches]
    number = surroundings(known.axis, windows.begin[rows], windows.end[rows], thread)
    return [[order[place] for place in group] for group in groups_of(number.tolist())]


def _of_graphs(
    known: GraphEvidence, shapes: list[Shape], replays: list[Replay], graph: list[Graph]
) -> dict[Graph, Candidates]:
    """For each graph the graph captures that agree with its replays; none if there are more graphs than these.

    A replay that ran less than others of its graph was not recorded whole, and tells nothing.
    """
    keys = [replay.shape for replay in replays]
    agreeing = {
        key: [row for row, shape in enumerate(shapes) if agreement(shape, replay) is not None]
        for key, replay in dict(zip(keys, replays, strict=True)).items()
    }
    longest: Counter[Graph] = Counter()
    for one, replay in zip(graph, replays, strict=True):
        longest[one] = max(longest[one], replay.codes.size)
    ended_ns, first_ns = [shape.capture.end_ns for shape in shapes], known.recording.first_replays
    # Thousands of replays agree with the same graph captures: each such set is kept once.
    earlier: dict[tuple[object, int], Candidates] = {}
    found: dict[Graph, Candidates] = {}
    runs: dict[Graph, object] = {}
    for one, replay, key in zip(graph, replays, keys, strict=True):
        before_ns = min(replay.start_ns, first_ns.get((replay.process, replay.graph), replay.start_ns))
        number = bisect_right(ended_ns, before_ns)
        if (key, number) not in earlier:
            earlier[key, number] = frozenset(row for row in agreeing[key] if row < number)
        if replay.codes.size == longest[one]:
            fit = earlier[key, number]
            found[one] = fit if found.get(one, fit) is fit else found[one] & fit
            runs[one] = one if replay.graph >= 0 else key
    return _enough(found, runs)


def _enough(found: dict[Graph, Candidates], runs: dict[Graph, object]) -> dict[Graph, Candidates]:
    """Leaves out candidates of more graphs than there are candidates.

    Args:
        found: The candidates of each graph.
        runs: The graph or, without an id, what it ran: that is the same every time, so others are of other graphs.
    """
    graphs = Counter(candidates for candidates, _ in {(found[one], run) for one, run in runs.items()})
    return {one: _NONE if graphs[candidates] > len(candidates) else candidates for one, candidates in found.items()}


def _in_order(sequence: tuple[Candidates, ...], batches: list[list[int]], *, numbered: bool) -> list[Candidates] | None:
    """The candidates in the places of the replays in one range; None if their order tells nothing."""
    in_order = placed(sequence, batches, numbered=numbered) if all(sequence) else []
    return in_order if any(in_order) else None


def _in_any_order(sequence: tuple[Candidates, ...], batches: list[list[int]]) -> list[Candidates]:
    """The candidates of the replays in one range, by their shapes alone, without ids of graphs.

    A shape that was replayed more often than a batch has it may be that of several graphs.
    """
    times = Counter(sequence)
    most = {one: max((len(one.intersection(batch)) for batch in batches), default=0) for one in times}
    return [one if times[one] <= most[one] else _NONE for one in sequence]


def _each_its_own(candidates: dict[Graph, Candidates]) -> dict[Graph, Candidates]:
    """Takes the graph captures that certainly made one graph from all others. Two that claim one are both unknown.

    Graphs without an id may be one, and claim nothing; those with equal candidates are looked at together.
    """
    graphs = Counter(rows for one, rows in candidates.items() if len(one) > 1)
    left = {rows: set(rows) for rows in graphs}
    holders: dict[int, list[Candidates]] = {}
    for capture, holder in ((capture, rows) for rows in graphs for capture in rows):
        holders.setdefault(capture, []).append(holder)
    certain = [*graphs]
    while certain := [rows for rows in certain if len(left[rows]) == 1]:
        claims = Counter(capture for rows in certain for capture in [*left[rows]] * graphs[rows])
        for rows in certain:
            left[rows] = {capture for capture in left[rows] if claims[capture] == 1}
        made = [(capture, rows) for rows in certain for capture in left[rows]]
        taken = [(rows, one) for one, maker in made for rows in holders[one] if rows is not maker and one in left[rows]]
        for rows, capture in taken:
            left[rows].remove(capture)
        certain = [*dict.fromkeys(rows for rows, _ in taken)]
    own = {rows: frozenset(rest) for rows, rest in left.items()}
    return {one: own[rows] if len(one) > 1 else rows for one, rows in candidates.items()}
