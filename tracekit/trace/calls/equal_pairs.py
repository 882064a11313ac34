"""Second ranges that say just what their call says, in processes in which every call has a second range.

Equal ranges in a row are calls and their second ranges in turn if every other one is empty. One more at the beginning,
the first of its path on its thread, closes a call from before the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import depths, firsts

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tally import Tally
    from tracekit.trace.calls.spans import Spans
    from tracekit.trace.calls.wording import Wording

#: So many calls that were each followed by an equal, empty range show that all are.
_ENOUGH_PAIRS = 2
#: A forward that raised has no second range: one of so many calls may lack it.
_SELDOM = 5


class _Runs(NamedTuple):
    """Runs of equal spans, each the sibling after the one before; most runs have one span.

    Attributes:
        first: Row of the first span of the run.
        length: How many spans the run has.
        odd: Whether an odd number of spans of the run come before this one.
    """

    first: Rows
    length: Ints
    odd: Flags

    def none_in(self, rows: Flags) -> Flags:
        """For every span whether none of the chosen rows are in its run."""
        return np.asarray(np.bincount(self.first[rows], minlength=self.first.size)[self.first] == 0)


#: Looks at the whole recording, as ``Tally.looks`` names them.
PAIRED, UNPAIRED = "equal pairs of ranges", "calls without a second range"
REFUSED, FIRST_CLOSES = "too few equal pairs", "a second range before all calls"


def with_equal_pairs(
    spans: Spans, wording: Wording, before: Rows, seconds: tuple[Flags, Rows], tally: Tally
) -> tuple[Flags, Rows]:
    """Adds second ranges that are equal to their calls.

    Args:
        spans: The spans.
        wording: What their markers say.
        before: For spans that tell no tensors the last call of the same path, or -1.
        seconds: Which spans are second ranges so far, and for each the call that it closes, or -1.
        tally: Where looks at the whole recording are noted.
    """
    second, call = seconds
    ended = _ended(call)
    pending = wording.quiet & ~second & ~ended
    before = np.where(pending & (spans.marker[before] == spans.marker) & pending[before], before, -1)
    runs = _runs(before)
    leading = (_first_of_path(spans, wording.path) & _outermost(spans))[runs.first] & ~spans.excused
    even = runs.length % 2 == 0
    busy = pending & spans.encloses
    closing_first = pending & leading & ~even & runs.none_in(busy & ~runs.odd)
    in_turn = pending & even & runs.none_in(busy & runs.odd)
    unpaired = wording.placed & ~second & ~ended & ~(in_turn | closing_first | spans.excused)
    tally.look(PAIRED, decides=bool(in_turn.any()))
    tally.look(UNPAIRED, decides=bool(unpaired.any()))
    tally.look(FIRST_CLOSES, decides=bool(closing_first.any()))
    always = _with_a_second_range_each(spans, call, in_turn, unpaired)
    tally.look(REFUSED, decides=bool((in_turn & ~always[spans.process]).any()))
    closes = always[spans.process] & ((in_turn & runs.odd) | (closing_first & ~runs.odd))
    return second | closes, np.where(closes, before, call)


def _ended(call: Rows) -> Flags:
    """Which spans have a second range."""
    ended = np.zeros(call.size + 1, dtype=bool)
    ended[call] = True
    return ended[:-1]


def _runs(before: Rows) -> _Runs:
    first = firsts(before)
    return _Runs(first, np.bincount(first, minlength=first.size)[first], depths(before) % 2 == 1)


def _with_a_second_range_each(spans: Spans, call: Rows, in_turn: Flags, unpaired: Flags) -> Flags:
    """For every process whether calls have second ranges throughout, but for the few whose forward raised."""
    processes = int(spans.process.max(initial=0)) + 1
    closed, pairs, without = (
        np.bincount(spans.process[rows], minlength=processes)
        for rows in (call >= 0, in_turn & spans.encloses, unpaired)
    )
    return ((closed > 0) | (pairs >= _ENOUGH_PAIRS)) & (without * _SELDOM <= closed + pairs)


def _outermost(spans: Spans) -> Flags:
    """Which spans lie in no other; an empty one at the end of another lies behind it."""
    around = spans.parent.copy()
    while (touched := (around >= 0) & (spans.end[around] == spans.start)).any():
        around[touched] = spans.parent[around[touched]]
    return np.asarray(around < 0)


def _first_of_path(spans: Spans, path: Ints) -> Flags:
    """Which spans are the first of their path on their thread."""
    first = np.zeros(path.size, dtype=bool)
    _, rows = np.unique(spans.thread.astype(np.int64) * (path.max(initial=0) + 2) + path, return_index=True)
    first[rows] = True
    return first
