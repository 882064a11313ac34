"""Spans before a span: the sibling before it, the last call of its path, and whether anything happened in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import one_axis

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.calls.spans import Spans


def previous_sibling(parent: Ints, thread: Ints) -> Ints:
    """For every row the row before it on its thread that has the same parent, or -1."""
    order = np.argsort(parent, kind="stable")
    previous = np.full(parent.size, -1, dtype=np.int64)
    same = (parent[order[1:]] == parent[order[:-1]]) & (thread[order[1:]] == thread[order[:-1]])
    previous[order[1:][same]] = order[:-1][same]
    return previous


def last_call_of_path(spans: Spans, second: Flags, path: Ints, rows: Rows) -> Rows:
    """For some spans the call of the same path on their thread that ended last before them, or -1.

    That is the sibling before in all but coarse time, where a call, its second range and that of its caller share a
    tick.

    Args:
        spans: The spans.
        second: Which of them are no calls.
        path: A number for every path; -1 for none.
        rows: The spans that are asked about.
    """
    calls = np.flatnonzero(~second & (path >= 0))
    if not rows.size or not calls.size:
        return np.full(rows.size, -1, dtype=np.int64)
    ended, began = one_axis([path[calls], path[rows]], [spans.end[calls], spans.start[rows]])
    order = np.argsort(ended, kind="stable")
    position = np.searchsorted(ended[order], began, side="right") - 1
    call = np.where(position >= 0, calls[order[position]], -1)
    same = (path[call] == path[rows]) & (spans.thread[call] == spans.thread[rows])
    call_start = spans.start[~second]
    called_between = np.searchsorted(call_start, spans.start[rows]) > np.searchsorted(call_start, spans.end[call])
    return np.where((call >= 0) & same & ~called_between, call, -1)


def after_other_work(spans: Spans, call: Rows) -> Rows:
    """Spans before which work was launched, or a step began, since their call had ended.

    Args:
        spans: The spans.
        call: For every span the call that it may be the second range of, or -1.
    """
    rows = np.flatnonzero(call >= 0)
    worked = spans.launched_before[rows] > spans.launched_until[call[rows]]
    return rows[worked | (spans.steps_before[rows] > spans.steps_until[call[rows]])]
