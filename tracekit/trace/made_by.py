"""Which call of the forward pass made the autograd node that launched something.

It is the call in which the operator ran that made the node (:mod:`tracekit.trace.autograd_nodes`). What such operators
made inside another node (a gradient of a gradient) is the work of the call that made that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import firsts, innermost
from tracekit.arrays.lookups import lookup

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.trace.autograd_nodes import AutogradNodes
    from tracekit.trace.calls.calls import Calls


class MadeBy(NamedTuple):
    """Who made the nodes of autograd that launched something.

    Attributes:
        call: For every launch the call whose operator made the node around it, or -1.
        ambiguous: For every launch whether several operators may have made that node.
        node: For every launch the node around it, if it is known which call made that; or -1.
        nodes: The nodes that ran.
        owner: For every node the call that made it, or -1.
    """

    call: Rows
    ambiguous: Flags
    node: Rows
    nodes: AutogradNodes
    owner: Rows


def made_by(nodes: AutogradNodes, axis: ThreadAxis, calls: Calls, call_at_launch: Rows) -> MadeBy:
    """For every launch who made the node of autograd around it.

    Args:
        nodes: The nodes that ran.
        axis: Launches on the axis of all threads.
        calls: The calls of modules.
        call_at_launch: For every launch the innermost call around it, or -1.
    """
    owner, doubtful = _owners(nodes, calls)
    launcher = nodes.around(axis.launch_start, axis.launch_end)
    own = (launcher >= 0) & (lookup(nodes.start, launcher) >= lookup(calls.start, call_at_launch))
    call = np.where(own, lookup(owner, launcher), -1)
    ambiguous = own & lookup(doubtful, launcher, missing=0).astype(bool)
    return MadeBy(call, ambiguous, np.where(call >= 0, launcher, -1), nodes, owner)


def _owners(nodes: AutogradNodes, calls: Calls) -> tuple[Rows, Flags]:
    """For every node the call that made it, and whether that is one of several."""
    call = innermost(calls.start, calls.end, calls.parent, nodes.maker_start, nodes.maker_end)
    # Between two operators it is known whose a node is only if no call begins or ends there.
    alike = np.searchsorted(calls.start, nodes.maker_start) == np.searchsorted(calls.start, nodes.until)
    certain = (nodes.until < 0) | (alike & (lookup(calls.end, call) > nodes.until))
    call = np.where((nodes.maker >= 0) & certain, call, -1)
    inside = (nodes.inside >= 0) & (lookup(nodes.start, nodes.inside) >= lookup(calls.start, call))
    first = firsts(np.where(inside, nodes.inside, -1))
    owner = np.where(inside, -1, call)[first]
    # Modules run again inside a node do so for a checkpoint: what else runs there is not the node's alone.
    again = nodes.around(calls.start, calls.end)
    owner[again[again >= 0]] = -1
    return owner, (owner < 0) & nodes.ambiguous[first]
