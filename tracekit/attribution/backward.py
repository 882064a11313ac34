"""``backward``: what a node of autograd launches belongs to the module whose forward made the node.

Known by the sequence numbers of marked operators (:mod:`tracekit.trace.made_by`), where no markers of the backward pass
tell it. Where modules are the nodes, their backward calls are put together from these nodes
(:mod:`tracekit.trace.calls.backward_calls`). Where ranges or operators are, the evaluation of the node is a call of the
operator that made it. The work is part of that call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.lookups import lookup
from tracekit.markers.phases import BACKWARD
from tracekit.trace.calls.backward_calls import with_backward

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.evidence import Evidence
    from tracekit.trace.made_by import MadeBy


NAME = "backward"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The call that made the node around the launch of each piece of work; -1 for replayed work and outside nodes."""
    call = np.full(work.size, -1, dtype=np.int64)
    if evidence.made_by is None and not evidence.calls.evaluates.any():
        return call
    launch = evidence.launched.launch[work]
    direct = (launch >= 0) & ~evidence.launched.replayed[work]
    if evidence.made_by is not None:
        call[direct] = evidence.made_by.call[launch[direct]]
    else:
        around = evidence.call_at_launch[launch[direct]]
        call[direct] = np.where(lookup(evidence.calls.evaluates, around, missing=0), around, -1)
    return call


def with_calls(evidence: Evidence, made: MadeBy, call: Rows, linked: Flags) -> tuple[Evidence, Rows]:
    """The evidence with the backward calls of modules, and the call of every piece of work among them.

    Args:
        evidence: What is known about the recording.
        made: Who made the nodes of autograd that ran.
        call: For every piece of work its call, or -1; the forward call where it was found by this method.
        linked: Which were found by this method.
    """
    found = with_backward(evidence.recording, evidence.axis, evidence.calls, made.nodes, made.owner)
    of_launch = lookup(found.of_node, made.node)
    around = np.where(made.node >= 0, of_launch, lookup(found.row, evidence.call_at_launch))
    runs = np.append(of_launch, -1)[evidence.launched.launch]
    phase = np.full(found.calls.start.size, BACKWARD, dtype=np.int64)
    phase[found.row] = evidence.phase_of_calls
    evidence = replace(evidence, calls=found.calls, call_at_launch=around.astype(np.int32), phase_of_calls=phase)
    return evidence, np.where(linked, runs, lookup(found.row, call)).astype(np.int32)
