"""Trees of calls: what is part of what.

Calls nest by time. A module that runs forward again in the middle of a backward pass (activation checkpointing) does so
inside the range of whatever runs backward just then, but is no part of it: it is the root of a tree of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import by_level
from tracekit.markers.base import ModuleMarker

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


def apart_from_parent(markers: list[Marker], marker: Rows, parent: Rows) -> Flags:
    """Which calls run a module again and are no part of the call around them.

    Args:
        markers: The distinct markers.
        marker: Row of the marker of every call, or -1.
        parent: Row of the enclosing call, or -1.
    """
    says_again = [isinstance(item, ModuleMarker) and item.phase == "recompute" for item in markers]
    again = np.array([*says_again, False])[marker]
    return np.asarray(again & (parent >= 0) & ~again[parent])


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
