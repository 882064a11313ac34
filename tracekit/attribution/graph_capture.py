"""``graph_capture``: a CUDA graph traced as a whole belongs to the innermost call that holds all of its graph capture.

Its time is that of everything in this call: which kernels ran, and in which of the calls inside, is not recorded. The
call is known only where it is certain which graph capture made the graph (:mod:`tracekit.graphs.whole_graphs`), and
where every launch captured there lies inside one outermost call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.intervals import innermost, subtree_ends

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.evidence import Evidence


NAME = "graph_capture"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The call that holds the graph capture of each graph traced as a whole; -1 where none does, and for other work."""
    graphs = evidence.whole_graphs
    call = np.full(evidence.recording.work.num_rows, -1, dtype=np.int64)
    if graphs.work.size:
        call[graphs.work] = _call_of_windows(evidence)[graphs.window]
    return call[work]


def _call_of_windows(evidence: Evidence) -> Rows:
    """For each graph capture the innermost call that all captured launches are part of, or -1."""
    graphs, calls, axis = evidence.whole_graphs, evidence.calls, evidence.axis
    windows, trees = int(graphs.captured_in.max()) + 1, calls.trees
    first = minima(graphs.captured_in, axis.launch_start[graphs.launch], windows)
    last = maxima(graphs.captured_in, axis.launch_end[graphs.launch], windows)
    call = innermost(calls.start, calls.end, calls.parent, first, last)
    node = np.append(trees.node, -1)[evidence.call_at_launch[graphs.launch]]
    lowest, highest = (extreme(graphs.captured_in, node, windows) for extreme in (minima, maxima))
    top = np.append(trees.node, -1)[call]
    end = np.append(subtree_ends(trees.parent, trees.depth), -1)[top]
    return np.where((call >= 0) & (lowest >= top) & (highest < end), call, -1)
