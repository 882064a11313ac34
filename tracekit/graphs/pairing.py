"""Pairs instances of CUDA graphs with the graph captures that made them where the report has no record of graphs.

There, equal shapes prove nothing: the instance may come from a graph made before the recording, and the graph capture
may never be replayed. Only where the report holds every CUDA call of a process, and its graph captures and instances
are equal in number and pair up in one way, are such cases ruled out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.graphs.api_calls import KERNEL_LAUNCH, MEMCPY_CALL, MEMSET_CALL
from tracekit.recording.tables import KERNEL, MEMCPY, MEMSET, names_starting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.graphs.graph_captures import GraphCaptures
    from tracekit.graphs.instances import Instance
    from tracekit.graphs.origins import GraphEvidence
    from tracekit.recording.tables import Recording

#: API calls by which a program builds a graph itself.
_BUILDS = ("cudaGraphCreate", "cuGraphCreate", "cudaGraphAdd", "cuGraphAdd")


_KINDS = {KERNEL_LAUNCH: KERNEL, MEMCPY_CALL: MEMCPY, MEMSET_CALL: MEMSET}


class GraphCapture(NamedTuple):
    """A graph capture whose launches are known.

    Attributes:
        window: Row of the windows.
        process: Row of processes.
        end_ns: End of its last launch.
        start: Starts of its launches on the axis, in order.
        end: Their ends.
        kinds: Kind of work of each launch, as bytes.
        launch: Their rows.
    """

    window: int
    process: int
    end_ns: int
    start: Ints
    end: Ints
    kinds: bytes
    launch: Rows


def graph_captures_with_launches(known: GraphEvidence) -> Iterator[GraphCapture]:
    """The graph captures with launches that no other graph capture can contain."""
    windows, submissions, recording = known.captures.windows, known.captures.submissions, known.recording
    kind = kinds_of(submissions.role)
    rows = np.flatnonzero(known.captures.captured & (kind >= 0))
    low, high = (np.searchsorted(submissions.start[rows], edge) for edge in (windows.opened, windows.closed))
    end_ns = integers(recording.launches, "end_ns")
    for window in np.flatnonzero(windows.alone & (high > low)).tolist():
        own = rows[low[window] : high[window]]
        yield GraphCapture(
            window=window,
            process=int(submissions.process[own[0]]),
            end_ns=int(end_ns[submissions.row[own[-1]]]),
            start=submissions.start[own],
            end=submissions.end[own],
            kinds=kind[own].tobytes(),
            launch=submissions.row[own],
        )


def kinds_of(role: Ints) -> Ints:
    """The kind of work that launches become; -1 for other calls."""
    kind = np.full(128, -1, dtype=np.int8)
    kind[list(_KINDS)] = list(_KINDS.values())
    return kind[role]


def agree(instance: Instance, capture: GraphCapture) -> bool:
    """Whether an instance may come from a graph capture: same process, same work in the same order, replayed later."""
    return (
        instance.in_order
        and instance.process == capture.process
        and instance.kinds == capture.kinds
        and instance.first_ns >= capture.end_ns
    )


def only_pairs(
    recording: Recording, known: GraphCaptures, captures: list[GraphCapture], instances: list[Instance]
) -> list[tuple[Instance, GraphCapture]]:
    """Instances with their graph captures, in processes where they pair up in one way only and none is left over.

    Args:
        recording: The recording.
        known: All that is known of its graph captures.
        captures: Those whose launches are known.
        instances: The instances of processes without any record of graphs.
    """
    complete = recording.from_the_start - _building(recording)
    edges = Counter(recording.threads.process[known.edges.thread].tolist())
    pairs: list[tuple[Instance, GraphCapture]] = []
    for process in complete & {instance.process for instance in instances}:
        made = [capture for capture in captures if capture.process == process]
        replayed = [instance for instance in instances if instance.process == process]
        # Two calls delimit each graph capture.
        if edges[process] == 2 * len(made):
            pairs += _one_to_one(replayed, made)
    return pairs


def _one_to_one(instances: list[Instance], captures: list[GraphCapture]) -> list[tuple[Instance, GraphCapture]]:
    """Each instance with the graph capture of its shape; nothing unless every shape occurs once on both sides."""
    by_shape = {capture.kinds: capture for capture in captures}
    shapes = {instance.kinds for instance in instances}
    if not len(captures) == len(instances) == len(by_shape) or shapes != by_shape.keys():
        return []
    pairs = [(instance, by_shape[instance.kinds]) for instance in instances]
    return pairs if all(agree(*pair) for pair in pairs) else []


def _building(recording: Recording) -> set[int]:
    """Processes that build graphs by hand."""
    launches = recording.launches
    names = np.asarray(names_starting(recording.names, _BUILDS), dtype=np.int64)
    thread = integers(launches, "thread")[np.isin(integers(launches, "name"), names)]
    return set(recording.threads.process[thread].tolist())
