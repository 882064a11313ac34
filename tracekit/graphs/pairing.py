"""Captures and the instances that may come of them, and which belong together where no graph is recorded.

There a capture and an instance of one shape prove nothing: the instance may be of a graph from before the recording,
and the capture one that is never replayed. Only where the report holds all that a process asked of CUDA, and its
captures and instances are as many and each fits one, is there no such graph.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.graphs.captures import Captures
    from tracekit.graphs.instances import Instance
    from tracekit.recording.tables import Recording

#: API calls by which a program builds a graph itself.
_BUILDS = ("cudaGraphCreate", "cuGraphCreate", "cudaGraphAdd", "cuGraphAdd")


class Capture(NamedTuple):
    """A capture whose launches are known: its window, process, end, and launches with the kinds of their work."""

    window: int
    process: int
    end_ns: int
    start: Ints
    end: Ints
    kinds: bytes


def agree(instance: Instance, capture: Capture) -> bool:
    """Whether an instance may come of a capture: same process, same work in the same order, and replayed later."""
    return (
        instance.in_order
        and instance.process == capture.process
        and instance.kinds == capture.kinds
        and instance.first_ns >= capture.end_ns
    )


def only_pairs(
    recording: Recording, known: Captures, captures: list[Capture], instances: list[Instance]
) -> list[tuple[Instance, Capture]]:
    """Instances and captures of processes in which they can be paired in one way only, and none is left over.

    Args:
        recording: The recording.
        known: Its captures.
        captures: Those of which the launches are known.
        instances: The instances of processes of whose graphs nothing is recorded.
    """
    trusted = recording.from_the_start - _building(recording)
    bounds = Counter(recording.threads.process[known.edge_thread].tolist())
    found: list[tuple[Instance, Capture]] = []
    for process in trusted & {instance.process for instance in instances}:
        made = [capture for capture in captures if capture.process == process]
        ran = [instance for instance in instances if instance.process == process]
        by_shape = {capture.kinds: capture for capture in made}
        pairs = [(one, by_shape[one.kinds]) for one in ran if one.kinds in by_shape]
        # Two calls bound each capture. As many shapes as captures and as instances: each has one and its own.
        one_to_one = bounds[process] == 2 * len(made) == 2 * len(by_shape) == 2 * len(ran)
        shapes = len({one.kinds for one, _ in pairs})
        if one_to_one and shapes == len(ran) and all(agree(*pair) for pair in pairs):
            found += pairs
    return found


def _building(recording: Recording) -> set[int]:
    """Processes that build graphs by hand."""
    launches = recording.launches
    names = np.asarray(names_starting(recording.names, _BUILDS), dtype=np.int64)
    thread = integers(launches, "thread")[np.isin(integers(launches, "name"), names)]
    return set(recording.threads.process[thread].tolist())
