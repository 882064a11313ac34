"""Spans before a span: the sibling before it, the last call of its path, and whether anything happened in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import one_axis, siblings_before

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.calls.spans import Spans


def previous_sibling(spans: Spans) -> Rows:
    """For every span the one before it on its thread that lies in the same span, or in none; or -1."""
    previous = siblings_before(spans.depth)
    outermost = np.flatnonzero(spans.parent < 0)
    # The first of each thread.
    previous[outermost[spans.thread[outermost] != spans.thread[previous[outermost]]]] = -1
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
    return rows[spans.happened[rows] >= spans.end[call[rows]]]
