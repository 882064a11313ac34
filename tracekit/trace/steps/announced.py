"""Steps that a report tells by itself: ranges that mark steps, and plain ranges that count iterations.

Several programs may mark the same iteration, one around the other: a profiler, an engine, the user. It is one step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents, subtree_ends
from tracekit.arrays.lookups import lookup
from tracekit.causes.markers import STEP_AROUND_STEPS
from tracekit.markers.base import StepMarker

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.plain import Keyed


class Announced(NamedTuple):
    """Steps that ranges tell.

    Attributes:
        row: Row of the recording's ranges.
        says: What each says.
    """

    row: Rows
    says: list[StepMarker]


def announced(recording: Recording, keyed: Keyed, calls: Calls, endings: Endings) -> Announced:
    """Ranges that mark steps, and for processes without any plain ranges that count iterations.

    Args:
        recording: The recording.
        keyed: The plain ranges that are nodes, and the markers.
        calls: The calls of modules alone.
        endings: When ranges ended.
    """
    decoded, thread = keyed.decoded, integers(recording.ranges, "thread")
    same_thread = np.asarray(recording.ranges.column("end_thread").is_null())
    marked = np.flatnonzero(decoded.ranges(recording, StepMarker) & same_thread)
    counting = _outside_of(calls, keyed)
    process, marking = (recording.threads.process[thread[rows]] for rows in (keyed.steps.row[counting], marked))
    counting = counting[~np.isin(process, marking)]
    markers = (decoded.markers[row] for row in decoded.of_text[integers(recording.ranges, "text")[marked]].tolist())
    once = _once_each(recording, endings, marked, [item for item in markers if isinstance(item, StepMarker)])
    says = [*once.says, *(keyed.step_markers[row] for row in counting.tolist())]
    return Announced(np.concatenate((once.row, keyed.steps.row[counting])), says)


def _once_each(recording: Recording, endings: Endings, marked: Rows, says: list[StepMarker]) -> Announced:
    """Of steps inside each other those that count, so that no time and no token is in two of them.

    Around one other, the outer one counts: it is the same iteration. A step around several others is something larger,
    and they are the iterations.
    """
    start_ns, thread = (integers(recording.ranges, name)[marked] for name in ("start_ns", "thread"))
    start, end = one_axis([thread, thread], [start_ns, endings.end_ns[marked]])
    order = nesting_order(start, end)
    parent, depth = parents(start[order], end[order])
    until = subtree_ends(parent, depth)
    holds_none = until == np.arange(until.size) + 1
    ended = np.append(0, np.cumsum(holds_none))
    single = ended[until] - ended[:-1] == 1
    recording.tally.add("ranges", STEP_AROUND_STEPS, int((~single).sum()))
    outermost = np.flatnonzero(single & ~lookup(single, parent, missing=False))
    # The steps inside such a one lie in a chain.
    chains = [[says[row] for row in order[first : until[first]].tolist()] for first in outermost.tolist()]
    return Announced(marked[order[outermost]], [_as_one(chain) for chain in chains])


def _as_one(chain: list[StepMarker]) -> StepMarker:
    """What the markers of one iteration say together, from the outside in: name and number are those of the first."""
    if len(chain) == 1:
        return chain[0]
    most = max(chain, key=lambda item: sum(value is not None for value in (item.kind, item.batch_size, item.tokens)))
    return replace(chain[0], kind=most.kind, batch_size=most.batch_size, tokens=most.tokens)


def _outside_of(calls: Calls, keyed: Keyed) -> Ints:
    """Which of the iterations among plain ranges lie in no call of a module."""
    around = innermost(calls.start, calls.end, calls.parent, keyed.steps.start, keyed.steps.end)
    return np.flatnonzero(around < 0)
