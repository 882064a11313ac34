"""Trees of calls: what is part of what.

Calls nest by time. A module that runs forward again in the middle of a backward pass (activation checkpointing) does so
inside the range of whatever runs backward just then, but is no part of it: it is the root of a tree of its own. So is a
backward pass that a module begins while it runs forward (forces as gradients of an energy).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import by_level
from tracekit.markers.base import ModuleMarker
from tracekit.markers.kinds import MODULE

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker


class Trees(NamedTuple):
    """Calls in an order in which every tree lies together, in pre-order.

    Attributes:
        call: Row of calls of every node.
        node: Row of nodes of every call.
        parent: For every node the node above, or -1.
        depth: How many nodes are above it.
    """

    call: Rows
    node: Rows
    parent: Rows
    depth: Ints


def runs_again(markers: list[Marker], marker: Rows, parent: Rows) -> Flags:
    """Which calls run a module again and are no part of the call around them.

    Args:
        markers: The distinct markers.
        marker: Row of the marker of every call, or -1.
        parent: Row of the enclosing call, or -1.
    """
    again = _in_phase(markers, "recompute")[marker]
    return np.asarray(again & (parent >= 0) & ~again[parent])


def apart_from_parent(markers: list[Marker], marker: Rows, parent: Rows) -> Flags:
    """Which calls are no part of the call around them: they run again, or begin a backward pass in a forward call.

    A backward pass begins with the outermost of its modules. Below the path of the call around it, it is its part.
    """
    apart = runs_again(markers, marker, parent)
    backward = np.append(_in_phase(markers, "backward")[marker], np.False_)
    begins = np.flatnonzero(backward[:-1] & (parent >= 0) & ~backward[parent])
    pairs, pair = np.unique(np.stack((marker[begins], marker[parent[begins]])), axis=1, return_inverse=True)
    elsewhere = [_is_elsewhere(markers[inner], markers[outer]) for inner, outer in pairs.T.tolist()]
    apart[begins] = np.array(elsewhere, dtype=bool)[pair.reshape(-1)]
    return apart


def _in_phase(markers: list[Marker], phase: str) -> Flags:
    """Which markers are of calls in a phase; one more stands for no marker."""
    return np.array([*(isinstance(item, ModuleMarker) and item.phase == phase for item in markers), False])


def _is_elsewhere(inner: Marker, outer: Marker) -> bool:
    """Whether the path of a call is not below that of the call around it."""
    if not isinstance(inner, ModuleMarker) or not isinstance(outer, ModuleMarker) or outer.kind != MODULE:
        return False
    return bool(outer.path) and not inner.path.startswith(f"{outer.path}.")


def trees_of(parent: Rows, depth: Ints, apart: Flags) -> Trees:
    """The trees of some calls.

    Args:
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose each one.
        apart: Which calls are no part of the call around them.
    """
    rows = np.arange(parent.size)
    if not apart.any():
        return Trees(rows, rows, parent, depth)
    root = np.where(apart, rows, -1)
    for level in by_level(depth)[1:]:
        inside = level[root[level] < 0]
        root[inside] = root[parent[inside]]
    call = np.argsort(root, kind="stable")
    node = np.empty_like(call)
    node[call] = rows
    above = np.append(node, -1)[np.where(apart, -1, parent)]
    return Trees(call, node, above[call], (depth - np.where(root >= 0, depth[root], 0))[call])
