"""Windows of graph captures: stretches of a thread between the calls that begin and end a graph capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.graphs.api_calls import BEGINS_CAPTURE, ENDS_CAPTURE

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording

#: Position on the axis of a time that is not known.
NOWHERE = np.iinfo(np.int64).min


class Windows(NamedTuple):
    """Graph captures of which both begin and end are recorded, in the order of the axis.

    Attributes:
        begin: Start of the call that began the graph capture, on the axis.
        opened: End of that call.
        closed: Start of the call that ended the graph capture.
        end: End of that call.
        alone: Whether no other graph capture can have been open on the thread meanwhile.
    """

    begin: Ints
    opened: Ints
    closed: Ints
    end: Ints
    alone: Flags

    def at(self, first: Ints, last: Ints) -> Rows:
        """The window that contains each ``[first, last]``, the calls at its edges included; -1 for none."""
        row = np.searchsorted(self.begin, first, side="right") - 1
        inside = (row >= 0) & (np.append(self.end, NOWHERE)[row] >= last)
        return np.where(inside, row, -1)

    def still_open(self, at: Ints) -> Flags:
        """Whether each time lies in a window, before the call that ends the graph capture."""
        row = self.at(at, at)
        return np.asarray((row >= 0) & (np.append(self.closed, NOWHERE)[row] >= at))


class Edges(NamedTuple):
    """All calls that begin or end a graph capture, in the order of the axis, paired or not.

    Attributes:
        start: Start of the call, on the axis.
        thread: Row of threads.
        begins: Whether it begins a graph capture; otherwise it ends one.
    """

    start: Ints
    thread: Rows
    begins: Flags


def windows_of(axis: ThreadAxis, role: Ints, thread: Ints) -> tuple[Windows, Edges]:
    """Pairs each call that begins a graph capture with the call after it on its thread, if that ends one.

    Args:
        axis: The recording's threads on one axis.
        role: Role of every launch.
        thread: Row of threads of every launch.
    """
    # The runtime's call lies around the driver's; both mean the same.
    rows = outermost(axis, np.flatnonzero((role == BEGINS_CAPTURE) | (role == ENDS_CAPTURE)))
    start, end = axis.launch_start[rows], axis.launch_end[rows]
    edges = Edges(start, thread[rows], role[rows] == BEGINS_CAPTURE)
    follows = np.zeros(rows.size + 1, dtype=bool)  # the edge before is on the same thread
    follows[1:-1] = edges.thread[1:] == edges.thread[:-1]
    pair = np.flatnonzero(edges.begins[:-1] & ~edges.begins[1:] & follows[1:-1])
    opened_before = follows[pair] & edges.begins[pair - 1]
    closed_after = follows[pair + 2] & ~np.append(edges.begins, True)[pair + 2]
    alone = ~opened_before & ~closed_after
    return Windows(start[pair], end[pair], start[pair + 1], end[pair + 1], alone), edges


def completely_recorded(recording: Recording, axis: ThreadAxis, windows: Windows, rows: Rows) -> Flags:
    """During which of some graph captures every call of the process is recorded: correlation ids have no gap."""
    begin, end = (np.searchsorted(axis.launch_start, edge[rows]) for edge in (windows.begin, windows.closed))
    ids = integers(recording.launches, "correlation_id")
    process = recording.threads.process[integers(recording.launches, "thread")]
    complete = np.zeros(rows.size, dtype=bool)
    for owner in np.unique(process[begin]).tolist():
        recorded, own = np.unique(ids[process == owner]), process[begin] == owner
        first, last = ids[begin[own]], ids[end[own]]
        calls = np.searchsorted(recorded, last) - np.searchsorted(recorded, first)
        complete[own] = calls == last - first
    return complete


def outermost(axis: ThreadAxis, rows: Rows) -> Rows:
    """Those of some launches that lie inside no other of them."""
    reach = np.maximum.accumulate(axis.launch_end[rows])
    within = np.zeros(rows.size, dtype=bool)
    within[1:] = axis.launch_end[rows[1:]] <= reach[:-1]
    touching = np.zeros(rows.size, dtype=bool)
    touching[1:] = axis.launch_start[rows[1:]] >= reach[:-1]
    return rows[~within | touching]
