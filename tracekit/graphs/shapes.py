"""Shapes of graph captures: what their launches would have run, in order; and whether a replay ran just that.

A trace of ROCm names the kernel of every launch, one of CUDA does not: there, only kinds and number can agree. Without
ids of nodes, the order is certain only in a graph that is a chain: no stream waited for another while it was captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.graphs.api_calls import GRAPH_LAUNCH, is_batch
from tracekit.graphs.pairing import graph_captures_with_launches
from tracekit.graphs.replays import COPY, NAMELESS, SET
from tracekit.recording.tables import KERNEL, MEMCPY, names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.origins import GraphEvidence
    from tracekit.graphs.pairing import GraphCapture
    from tracekit.graphs.replays import Replay

_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent")
#: Calls that add nodes by hand, so that not all nodes are launches.
_ADDS = ("cudaGraphAdd", "cuGraphAdd", "hipGraphAdd")


class Shape(NamedTuple):
    """A graph capture, all of whose launches are known.

    Attributes:
        capture: The graph capture.
        codes: What each launch would have run.
        label: For each launch a number, the same for launches that mean the same.
        forked: Whether a stream waited for another.
    """

    capture: GraphCapture
    codes: Ints
    label: Ints
    forked: bool


def shapes_of(known: GraphEvidence, label: Ints) -> list[Shape]:
    """The graph captures all of whose launches are known, in the order in which they ended.

    Args:
        known: What is known about the recording's graphs.
        label: For every launch a number, the same for launches that mean the same.
    """
    recording, windows = known.recording, known.captures.windows
    kernel = np.asarray(integers(recording.launches, "kernel"))
    forked, unclear = _with_call(known, _named(known, _WAITS)), _with_call(known, _unclear(known))
    captures = [one for one in graph_captures_with_launches(known) if not unclear[one.window]]
    shapes = []
    for one in sorted(captures, key=lambda one: (one.end_ns, windows.begin[one.window])):
        kinds = np.frombuffer(one.kinds, dtype=np.int8)
        others = np.where(kinds == MEMCPY, COPY, SET)
        codes = np.where(kinds == KERNEL, np.maximum(kernel[one.launch], NAMELESS), others)
        shapes.append(Shape(one, codes.astype(np.int64), label[one.launch], bool(forked[one.window])))
    return shapes


def agreement(shape: Shape, replay: Replay) -> tuple[Rows, Rows] | None:
    """Positions of nodes of a replay, and of the launch that each was; None if the replay ran anything else."""
    if shape.capture.process != replay.process or shape.codes.size != replay.codes.size:
        return None
    every = np.arange(shape.codes.size)
    if replay.linear and not shape.forked:
        return (every, every) if _same(shape.codes, replay.codes) else None
    if replay.by_id is None:
        return None
    # Where streams fork, only ids tell the order; what has none may be anywhere.
    some = every if replay.by_id.size == every.size else every[shape.codes >= NAMELESS]
    if some.size != replay.by_id.size or not _same(shape.codes[some], replay.codes[replay.by_id]):
        return None
    others = np.delete(shape.codes, some), np.delete(replay.codes, replay.by_id)
    return (replay.by_id, some) if np.array_equal(np.sort(others[0]), np.sort(others[1])) else None


def _same(captured: Ints, replayed: Ints) -> bool:
    nameless = (captured == NAMELESS) & (replayed >= NAMELESS)
    return bool(((captured == replayed) | nameless).all())


def _named(known: GraphEvidence, prefixes: tuple[str, ...]) -> Flags:
    """Which launches have a name that begins in one of these ways."""
    names = np.asarray(names_starting(known.recording.names, prefixes), dtype=np.int64)
    return np.isin(integers(known.recording.launches, "name"), names)


def _unclear(known: GraphEvidence) -> Flags:
    """Which launches may have become other nodes than one."""
    submissions = known.captures.submissions
    unclear = _named(known, _ADDS)
    several = (submissions.role == GRAPH_LAUNCH) | is_batch(known.recording, submissions.row)
    unclear[submissions.row[several & ~submissions.worked]] = True
    return unclear


def _with_call(known: GraphEvidence, calls: Flags) -> Flags:
    """During which graph captures there was one of these calls."""
    rows = np.flatnonzero(calls)
    window = known.captures.windows.at(known.axis.launch_start[rows], known.axis.launch_end[rows])
    held = np.zeros(known.captures.windows.begin.size + 1, dtype=bool)
    held[window] = True
    return held[:-1]
