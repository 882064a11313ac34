"""Which work ran from a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.recording import GRAPH, GRAPH_LAUNCHES, integers

if TYPE_CHECKING:
    from tracekit.arrays import Flags
    from tracekit.trace import Evidence


def is_replayed(evidence: Evidence) -> Flags:
    """For every piece of work whether it was replayed: it is a node of a graph, or a graph launch started it."""
    recording = evidence.recording
    replays = [row for row, name in enumerate(recording.names) if name.startswith(GRAPH_LAUNCHES)]
    launched_by = np.append(integers(recording.launches, "name"), -1)[evidence.launched.launch]
    in_graph = np.asarray(recording.work.column("graph_node_id").is_valid())
    return in_graph | np.isin(launched_by, replays) | is_whole_graph(evidence)


def is_whole_graph(evidence: Evidence) -> Flags:
    """For every piece of work whether it is a graph traced as a whole."""
    return np.asarray(integers(evidence.recording.work, "kind") == GRAPH)
