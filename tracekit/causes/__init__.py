"""Counted causes: what could not be attributed or read, why, and what to do about it.

Every loss has a name here. A stage that has to leave something out counts it in a
:class:`~tracekit.recording.tally.Tally`, so nothing is dropped silently.
"""

from __future__ import annotations

from tracekit.causes import markers, reports, work
from tracekit.causes.base import Cause

#: All causes, in their order.
CAUSES: tuple[Cause, ...] = tuple(
    value for room in (work, markers, reports) for value in vars(room).values() if isinstance(value, Cause)
)
BY_NAME: dict[str, Cause] = {cause.name: cause for cause in CAUSES}
ADVICE: dict[str, str] = {cause.name: cause.advice for cause in CAUSES}
#: The subject of losses that the profiler reports for the report as a whole.
REPORT = "report"
#: Suffixes of subjects: rows that were lost, and rows that are not needed and were left out.
LOSSES, LEFT_OUT = ": losses", ": left out"
