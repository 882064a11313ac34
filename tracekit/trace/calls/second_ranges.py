"""The second, empty range that hooks write when a call has ended: part of its call, not a call of its own.

Mostly it tells ``Outputs``. vLLM's hooks leave these out where they find no tensors (a dataclass, a dict, None); then
it says what the call's range says without inputs, or just the same if that tells none either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.markers.base import Unreadable
from tracekit.trace.calls.neighbours import after_other_work, last_call_of_path, previous_sibling
from tracekit.trace.calls.silent import with_silent
from tracekit.trace.calls.wording import Wording

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.recording.tally import Tally
    from tracekit.trace.calls.spans import Spans
    from tracekit.trace.decoding import Decoded


class SecondRanges(NamedTuple):
    """Which spans are not calls of their own.

    Attributes:
        second: Whether the span is the second range of a call.
        call: For these the call, or -1 where that is not in the report.
        marker: Row of the marker of every span; a call that could not be read has that of its second range.
    """

    second: Flags
    call: Rows
    marker: Rows


def second_ranges(spans: Spans, decoded: Decoded, tally: Tally) -> SecondRanges:
    """Tells the spans that only end a call from the calls themselves.

    Args:
        spans: The spans.
        decoded: The markers.
        tally: Where looks at the whole recording are noted.
    """
    wording = Wording.of(spans, decoded)
    before = previous_sibling(spans)
    unreadable = decoded.rows(Unreadable)[spans.marker]
    loud = _with_outputs(spans, wording, before, unreadable)
    second, call = with_silent(spans, wording, before, loud, decoded.markers, tally)
    call = _first_claims(call)
    closing = np.flatnonzero(call >= 0)
    named = closing[unreadable[call[closing]]]
    marker = spans.marker.copy()
    marker[call[named]] = marker[named]
    return SecondRanges(second, call, marker)


def _with_outputs(spans: Spans, wording: Wording, before: Rows, unreadable: Flags) -> tuple[Flags, Rows]:
    """Second ranges that tell outputs, and for each the call that it closes, or -1."""
    second = wording.only_result & ~spans.encloses
    call = np.full(before.size, -1, dtype=np.int64)
    rows = np.flatnonzero(second)
    at = before[rows]
    fits = (at >= 0) & ~second[at] & ((wording.path[at] == wording.path[rows]) | unreadable[at])
    call[rows] = np.where(fits, at, -1)
    missed = rows[~fits]
    call[missed] = last_call_of_path(spans, second, wording.path, missed)
    call[after_other_work(spans, call)] = -1
    return second, call


def _first_claims(call: Rows) -> Rows:
    """Each call for the first span that claims it; later ones belong to calls that are not in the report."""
    rows = np.flatnonzero(call >= 0)
    if int(np.bincount(call[rows]).max(initial=0)) <= 1:
        return call
    kept = np.full(call.size, -1, dtype=np.int64)
    first = rows[np.unique(call[rows], return_index=True)[1]]
    kept[first] = call[first]
    return kept
