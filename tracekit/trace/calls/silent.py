"""Second ranges that tell no outputs: they say what the call's range says, without its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.trace.calls.equal_pairs import UNPAIRED, with_equal_pairs
from tracekit.trace.calls.neighbours import after_other_work, last_call_of_path
from tracekit.trace.calls.wording import says_less

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.tally import Tally
    from tracekit.trace.calls.spans import Spans
    from tracekit.trace.calls.wording import Wording


#: Looks at the whole recording, as ``Tally.looks`` names them.
BRIEF, MOSTLY_OPEN = "brief second ranges", "most calls without a second range"


def with_silent(
    spans: Spans,
    wording: Wording,
    before: Rows,
    seconds: tuple[Flags, Rows],
    markers: list[Marker],
    tally: Tally,
) -> tuple[Flags, Rows]:
    """Adds second ranges that tell no outputs.

    Args:
        spans: The spans.
        wording: What their markers say.
        before: For every span the sibling before it, or -1.
        seconds: Which spans are second ranges by their outputs, and for each the call that it closes, or -1.
        markers: The decoded markers.
        tally: Where looks at the whole recording are noted.
    """
    second, call = seconds
    closed = np.zeros(call.size + 1, dtype=bool)
    closed[call] = True
    # A span that has a second range of its own is a call.
    silent = np.flatnonzero(wording.quiet & ~spans.encloses & ~closed[:-1])
    if not silent.size:
        tally.look(MOSTLY_OPEN, decides=not _mostly_closed(spans, wording, second, closed[:-1]).all())
        tally.look(UNPAIRED, decides=bool((wording.placed & ~second & ~closed[:-1] & ~spans.excused).any()))
        return second, call
    candidate = _candidates(spans, wording, before, second, silent)
    candidate[closed[candidate]] = -1
    brief = np.zeros(call.size, dtype=bool)
    followed = silent[candidate[silent] >= 0]
    brief[followed] = says_less(spans.marker[followed], spans.marker[candidate[followed]], markers)
    closed[candidate[brief]] = True
    closed_mostly = _mostly_closed(spans, wording, second | brief, closed[:-1])
    tally.look(BRIEF, decides=bool(brief.any()))
    tally.look(MOSTLY_OPEN, decides=not closed_mostly.all())
    brief &= closed_mostly[spans.process]
    seconds = second | brief, np.where(brief, candidate, call)
    return with_equal_pairs(spans, wording, candidate, seconds, tally)


def _candidates(spans: Spans, wording: Wording, before: Rows, second: Flags, silent: Rows) -> Rows:
    """For every silent span the call of the same path right before it, or -1; -1 for all others."""
    candidate = np.full(before.size, -1, dtype=np.int64)
    candidate[silent] = before[silent]
    fits = (candidate >= 0) & ~second[candidate] & (wording.path[candidate] == wording.path)
    candidate[~fits] = -1
    missed = silent[candidate[silent] < 0]
    empty = wording.quiet & (spans.start == spans.end)
    candidate[missed] = last_call_of_path(spans, second | empty, wording.path, missed)
    candidate[after_other_work(spans, candidate)] = -1
    return candidate


def _mostly_closed(spans: Spans, wording: Wording, second: Flags, closed: Flags) -> Flags:
    """For every process whether at least half of its calls that tell tensors have a second range."""
    calls = np.flatnonzero(wording.placed & ~wording.quiet & ~second & ~spans.excused)
    process, processes = spans.process[calls], int(spans.process.max(initial=0)) + 1
    ended, all_ = (np.bincount(rows, minlength=processes) for rows in (process[closed[calls]], process))
    return np.asarray(2 * ended >= all_)
