"""Graph captures without the calls that begin and end them, in a trace that is known to be one of a graph capture.

There, launches that put no work on the device were captured: those on one thread, up to a launch that did work or to
the call that makes the graph executable, are one graph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import in_order, integers
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.graphs.api_calls import BEGINS_CAPTURE, ENDS_CAPTURE, roles_of
from tracekit.graphs.submissions import submissions_of
from tracekit.recording.axis import thread_axis
from tracekit.recording.tables import LAUNCHES, names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.recording.tables import Recording

_EDGES = ("cudaStreamBeginCapture", "cudaStreamEndCapture")
_INSTANTIATES = ("cudaGraphInstantiate", "cuGraphInstantiate", "hipGraphInstantiate")


def with_edges(recording: Recording, launch: Rows) -> Recording:
    """The recording of a graph capture with calls that begin and end it, where it has none.

    Args:
        recording: The recording.
        launch: Row of the launch of every piece of work, or -1.
    """
    role = roles_of(recording)
    if ((role == BEGINS_CAPTURE) | (role == ENDS_CAPTURE)).any():
        return recording
    works = np.zeros(recording.launches.num_rows + 1, dtype=bool)
    works[launch] = True
    runs = _runs(recording, works[:-1])
    if not runs:
        return recording
    first, last = (np.array(rows, dtype=np.int64) for rows in zip(*((run[0], run[-1]) for run in runs), strict=True))
    begin_ns = integers(recording.launches, "start_ns")[first] - 1
    end_ns = integers(recording.launches, "end_ns")[last] + 1
    name = len(recording.names) + np.repeat(np.arange(2), first.size)
    at = np.concatenate((begin_ns, end_ns))
    edges = LAUNCHES.table(
        {
            "start_ns": at,
            "end_ns": at,
            "thread": np.tile(integers(recording.launches, "thread")[first], 2).astype(np.int32),
            "correlation_id": np.zeros(at.size, dtype=np.int64),
            "name": pa.array(name, pa.int32()),
            "kernel": None,
        }
    )
    both = pa.concat_tables([recording.launches, edges]).combine_chunks()
    thread = integers(both, "thread")
    times = [integers(both, "start_ns"), integers(both, "end_ns")]
    launches = in_order(both, nesting_order(*one_axis([thread, thread], times)))
    return replace(recording, launches=launches, names=[*recording.names, *_EDGES])


def _runs(recording: Recording, works: Flags) -> list[list[int]]:
    """Rows of the launches of each graph, in order."""
    submissions = submissions_of(recording, thread_axis(recording), roles_of(recording), works)
    names = np.asarray(names_starting(recording.names, _INSTANTIATES), dtype=np.int64)
    instantiates = np.flatnonzero(np.isin(integers(recording.launches, "name"), names))
    rows = np.concatenate((submissions.row, instantiates))
    captured = np.concatenate((submissions.silent, np.zeros(instantiates.size, dtype=bool)))
    order = np.argsort(rows, kind="stable")
    thread = integers(recording.launches, "thread")
    runs: list[list[int]] = [[]]
    for row, silent in zip(rows[order].tolist(), captured[order].tolist(), strict=True):
        if runs[-1] and (not silent or thread[row] != thread[runs[-1][-1]]):
            runs.append([])
        if silent:
            runs[-1].append(row)
    return [run for run in runs if run]
