"""Replays: which device work ran from a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts
from tracekit.recording.tables import GRAPH, graph_launch_names

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.recording.tables import Recording


def is_replayed(recording: Recording, launch: Rows) -> Flags:
    """For every piece of work whether it was replayed: it is a node of a graph, or a graph launch started it.

    A launch without a name that started several pieces of work may be a graph launch, and counts as one.

    Args:
        recording: The recording.
        launch: Row of the launch of every piece of work, or -1.
    """
    replays = graph_launch_names(recording.names)
    name = np.append(integers(recording.launches, "name"), -1)
    of_graph = np.isin(name, replays)
    nameless = name < 0
    nameless[-1] = False
    if nameless.any():
        of_graph |= nameless & (counts(launch, name.size) > 1)
    in_graph = np.asarray(recording.work.column("graph_node_id").is_valid())
    return in_graph | of_graph.take(launch) | is_whole_graph(recording)


def is_whole_graph(recording: Recording) -> Flags:
    """For every piece of work whether it is a graph traced as a whole."""
    return np.asarray(integers(recording.work, "kind") == GRAPH)
