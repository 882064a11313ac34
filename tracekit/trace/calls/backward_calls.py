"""Backward calls of modules, by the autograd nodes that their forward calls made."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import firsts, innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Flags, Rows
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.autograd_nodes import AutogradNodes
from tracekit.trace.calls.calls import Calls

#: Calls inside more than so many others are left out.
_DEEPEST = 64


class _Stretches(NamedTuple):
    """Stretches of nodes, the outer ones first."""

    forward: Rows
    first: Rows
    last: Rows


def with_backward(
    recording: Recording, axis: ThreadAxis, calls: Calls, nodes: AutogradNodes, owner: Rows
) -> tuple[Calls, Rows, Rows]:
    """Calls with those of backward passes; the owner of a node is the call that made it, or -1.

    Also the new row of every call, and for every node of autograd the call that runs it, or -1.
    """
    owner = np.where(lookup(calls.known, owner, missing=0), owner, -1)
    runs = _runs(nodes, owner)
    if not runs.size:
        return calls, np.arange(calls.start.size), np.full(owner.size, -1, dtype=np.int64)
    ends = _ends_after(recording, axis, calls, nodes, runs, owner)
    stretches, of_run = _stretches(calls, runs, owner[runs], ends)
    of_node = np.full(owner.size, -1, dtype=np.int64)
    of_node[runs] = of_run
    while (inside := (of_node < 0) & (owner >= 0) & (lookup(of_node, nodes.parent) >= 0)).any():
        of_node = np.where(inside, lookup(of_node, nodes.parent), of_node)
    return _merged(calls, nodes, stretches, of_node)


def _runs(nodes: AutogradNodes, owner: Rows) -> Rows:
    """The nodes of which calls consist, in order: the outermost inside of which no node of another call runs."""
    mixed = np.zeros(owner.size, dtype=bool)
    above = nodes.parent[(nodes.parent >= 0) & (owner != lookup(owner, nodes.parent))]
    while above.size:
        mixed[above] = True
        above = np.unique(nodes.parent[above])
        above = above[above >= 0]
        above = above[~mixed[above]]
    whole = (owner >= 0) & ~mixed
    return np.flatnonzero(whole & ~lookup(whole, nodes.parent, missing=0).astype(bool))


def _ends_after(
    recording: Recording, axis: ThreadAxis, calls: Calls, nodes: AutogradNodes, runs: Rows, owner: Rows
) -> Flags:
    before, after = runs[:-1], runs[1:]
    start, end = nodes.end[before], nodes.start[after]
    around = calls.innermost(nodes.start[runs], nodes.end[runs])
    other = np.flatnonzero((owner < 0) & nodes.numbered)
    ends = (nodes.parent[before] != nodes.parent[after]) | (around[:-1] != around[1:])
    for starts in (calls.start, nodes.start[other]):
        ends |= np.searchsorted(starts, start) != np.searchsorted(starts, end)
    thread = recording.ranges.thread
    ends |= thread[nodes.row[before]] != thread[nodes.row[after]]
    return np.asarray(ends | _goes_on(recording, axis, calls, nodes, (before, after, owner[before])))


def _goes_on(
    recording: Recording, axis: ThreadAxis, calls: Calls, nodes: AutogradNodes, pairs: tuple[Rows, Rows, Rows]
) -> Flags:
    """Whether between two nodes a range outside of all nodes begins on the thread of the forward call of the first."""
    before, after, forward = pairs
    thread, start_ns, end_ns = recording.ranges.thread, recording.ranges.start_ns, recording.ranges.end_ns
    outside = np.flatnonzero(nodes.around(axis.range_start, axis.range_end) < 0)
    waiting = thread[calls.range_row[forward]]
    times = start_ns[outside], end_ns[nodes.row[before]], start_ns[nodes.row[after]]
    began, until, since = one_axis([thread[outside], waiting, waiting], times)
    began = np.sort(began)
    return np.asarray(np.searchsorted(began, until) < np.searchsorted(began, since))


def _stretches(calls: Calls, runs: Rows, owner: Rows, ends: Flags) -> tuple[_Stretches, Rows]:
    found: list[_Stretches] = []
    of_run, number = np.full(runs.size, -1, dtype=np.int64), 0
    for call in _levels(calls, owner):
        begins = (call >= 0) & np.append(True, ends | (call[1:] != call[:-1]))[: call.size]
        stops = (call >= 0) & np.append(ends | (call[1:] != call[:-1]), True)[: call.size]
        inside = np.flatnonzero(call >= 0)
        of_run[inside] = number + np.cumsum(begins)[inside] - 1
        found.append(_Stretches(call[begins], runs[begins], runs[stops]))
        number += int(begins.sum())
    return _Stretches(*(np.concatenate(column) for column in zip(*found, strict=True))), of_run


def _levels(calls: Calls, owner: Rows) -> Iterator[Rows]:
    """For every node, of each level of calls, outermost first, the one around its own or its own; -1 below that."""
    chain, above = [owner], calls.known_parent
    while len(chain) <= _DEEPEST and (chain[-1] >= 0).any():
        chain.append(lookup(above, chain[-1]))
    levels = np.stack(chain)
    depth = (levels >= 0).sum(axis=0)
    whole = lookup(above, levels[-1]) < 0
    for level in range(int(depth.max())):
        at = np.maximum(depth - 1 - level, 0)
        yield np.where(whole & (level < depth), levels[at, np.arange(owner.size)], -1)


def _merged(calls: Calls, nodes: AutogradNodes, stretches: _Stretches, of_node: Rows) -> tuple[Calls, Rows, Rows]:
    size = calls.start.size
    start = np.concatenate((calls.start, nodes.start[stretches.first]))
    end = np.concatenate((calls.end, nodes.end[stretches.last]))
    order = nesting_order(start, end)
    row = np.empty(order.size, dtype=np.int64)
    row[order] = np.arange(order.size)
    parent, depth = parents(start[order], end[order])
    # What the marker of a call does not say is taken from the row of its forward call.
    at = np.concatenate((np.arange(size), stretches.forward))[order]
    unmarked = order >= size
    node = lookup(stretches.first, np.where(unmarked, order - size, -1))
    last = lookup(stretches.last, np.where(unmarked, order - size, -1))
    # A pass that begins in a call is no part of it.
    begins = unmarked & (parent >= 0) & ~lookup(unmarked, parent, missing=0).astype(bool)
    merged = replace(
        calls,
        range_row=np.where(unmarked, lookup(nodes.row, node), calls.range_row[at]).astype(np.int32),
        last_range=np.where(unmarked, lookup(nodes.row, last), calls.last_range[at]).astype(np.int32),
        start=start[order],
        end=end[order],
        parent=parent.astype(np.int32),
        depth=depth.astype(np.int32),
        marker=np.where(unmarked, -1, calls.marker[at]).astype(np.int32),
        outputs=np.where(unmarked, -1, calls.outputs[at]).astype(np.int32),
        cause=calls.cause[at],
        module=calls.module[at],
        captured=calls.captured[at] & ~unmarked,
        apart=np.where(unmarked, begins, calls.apart[at]),
        waiting=np.full(order.size, -1, dtype=np.int32),
        evaluates=calls.evaluates[at] | unmarked,
        unmarked=unmarked,
    )
    return merged, row[:size], np.where(of_node >= 0, row[size + of_node], -1)


class ForwardCalls(NamedTuple):
    """Who made the nodes of autograd that launched something.

    Attributes:
        call: For every launch the call whose operator made the node around it, or -1.
        ambiguous: For every launch whether several operators may have made that node.
        node: For every launch the node around it, if it is known which call made that; or -1.
        owner: For every node the call that made it, or -1.
    """

    call: Rows
    ambiguous: Flags
    node: Rows
    nodes: AutogradNodes
    owner: Rows


def forward_call_of(nodes: AutogradNodes, axis: ThreadAxis, calls: Calls, call_at_launch: Rows) -> ForwardCalls:
    """For every launch the forward call that made the node of autograd around it, or -1."""
    owner, doubtful = _owners(nodes, calls)
    launcher = nodes.around(axis.launch_start, axis.launch_end)
    own = (launcher >= 0) & (lookup(nodes.start, launcher) >= lookup(calls.start, call_at_launch))
    call = np.where(own, lookup(owner, launcher), -1)
    ambiguous = own & lookup(doubtful, launcher, missing=0).astype(bool)
    return ForwardCalls(call, ambiguous, np.where(call >= 0, launcher, -1), nodes, owner)


def _owners(nodes: AutogradNodes, calls: Calls) -> tuple[Rows, Flags]:
    call = innermost(calls.start, calls.end, calls.parent, nodes.maker_start, nodes.maker_end)
    call = np.where(nodes.maker >= 0, call, -1)
    inside = (nodes.inside >= 0) & (lookup(nodes.start, nodes.inside) >= lookup(calls.start, call))
    first = firsts(np.where(inside, nodes.inside, -1))
    owner = np.where(inside, -1, call)[first]
    # Modules run again inside a node do so for a checkpoint: what else runs there is not only the node's.
    again = nodes.around(calls.start, calls.end)
    owner[again[again >= 0]] = -1
    return owner, (owner < 0) & nodes.ambiguous[first]
