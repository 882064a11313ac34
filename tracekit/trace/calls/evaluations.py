"""Evaluations of autograd's nodes among plain ranges: they stand where the operator does that made the node.

So the time of an operator is that of its forward and its backward pass, as it is for a module. What an operator made
inside another node (a gradient of a gradient, or a checkpoint that runs again) stands where that node does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import sums
from tracekit.arrays.intervals import by_level, depths, firsts, innermost, parents
from tracekit.arrays.lookups import lookup
from tracekit.causes.work import AMBIGUOUS_SEQ
from tracekit.markers.base import ModuleMarker
from tracekit.markers.kinds import MODULE

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.tally import Tally
    from tracekit.trace.autograd_nodes import AutogradNodes
    from tracekit.trace.calls.columns import CallColumns, Forest
    from tracekit.trace.calls.trees import Trees


class Evaluations(NamedTuple):
    """Which calls evaluate nodes of autograd whose operators are known.

    Attributes:
        forward: For every call that of the operator which made the node that it evaluates, or -1.
        within: Which calls are such evaluations, or plain ranges inside.
    """

    forward: Rows
    within: Flags


def evaluations(
    nodes: AutogradNodes | None, calls: CallColumns, forest: Forest, markers: list[Marker], tally: Tally
) -> Evaluations:
    """Finds the calls that evaluate nodes of autograd.

    Args:
        nodes: The nodes that ran; None if nothing tells who made them.
        calls: The calls.
        forest: How they nest.
        markers: The distinct markers.
        tally: Where those are counted that several operators may have made.
    """
    size = calls.start.size
    if nodes is None or not nodes.row.size:
        return Evaluations(np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=bool))
    tally.add("ranges", AMBIGUOUS_SEQ, int(nodes.ambiguous.sum()))
    call_of_range = np.full(int(max(nodes.row.max(), calls.range_row.max(initial=0))) + 1, -1, dtype=np.int64)
    marked = np.flatnonzero(calls.marker >= 0)
    call_of_range[calls.range_row[marked]] = marked
    maker = innermost(calls.start, calls.end, forest.parent, nodes.maker_start, nodes.maker_end)
    known = (nodes.maker >= 0) & (nodes.until < 0)
    maker = np.where(known & (lookup(calls.marker, maker) >= 0), maker, -1)
    maker = np.where(known, maker[firsts(nodes.inside)], -1)
    evaluation = call_of_range[nodes.row]
    linked = (maker >= 0) & (evaluation >= 0)
    forward = np.full(size, -1, dtype=np.int64)
    forward[evaluation[linked]] = maker[linked]
    return Evaluations(forward, _within(forward, calls, markers))


def _within(forward: Rows, calls: CallColumns, markers: list[Marker]) -> Flags:
    """Which calls are evaluations or lie inside of one, in no call of a module inside."""
    of_module = [isinstance(marker, ModuleMarker) and marker.kind == MODULE for marker in markers]
    bounds = np.flatnonzero((forward >= 0) | np.array([*of_module, False])[calls.marker])
    start, end = calls.start[bounds], calls.end[bounds]
    around = innermost(start, end, parents(start, end)[0], calls.start, calls.end)
    return np.asarray(lookup(forward[bounds], around) >= 0)


def below_operators(trees: Trees, forward: Rows) -> Trees:
    """The trees of calls, with evaluations below the operators that made their nodes; in pre-order.

    Args:
        trees: The trees, in which evaluations are roots.
        forward: For every call that of the operator which made the node that it evaluates, or -1.
    """
    if not (forward >= 0).any():
        return trees
    made = forward[trees.call]
    parent = np.where(made >= 0, lookup(trees.node, made), trees.parent)
    place = _pre_order(parent)
    order = np.argsort(place)
    depth = depths(parent)
    return trees._replace(
        call=trees.call[order], node=place[trees.node], parent=lookup(place, parent[order]), depth=depth[order]
    )


def _pre_order(parent: Rows) -> Ints:
    """The place of every row of a forest in pre-order; siblings keep their order."""
    levels = by_level(depths(parent))
    size = np.ones(parent.size, dtype=np.int64)
    for rows in reversed(levels[1:]):
        size += sums(parent[rows], size[rows], parent.size)
    place = np.empty(parent.size, dtype=np.int64)
    for rows in levels:
        rows = rows[np.argsort(parent[rows], kind="stable")]  # noqa: PLW2901
        before = np.cumsum(size[rows]) - size[rows]
        above = parent[rows]
        _, first = np.unique(above, return_index=True)
        start_of_family = np.repeat(before[first], np.diff(np.append(first, rows.size)))
        place[rows] = lookup(place, above, missing=-1) + 1 + before - start_of_family
    return place
