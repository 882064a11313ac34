"""What a report says about its work itself, as exports of datasets do, goes before what can be found again.

A dataset holds less than the report that it was made of, such as no records of CUDA graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.lookups import lookup, positions
from tracekit.attribution.base import Owners
from tracekit.causes import CAUSES

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.recording.attributed import Attributed
    from tracekit.trace.evidence import Evidence


def recorded(evidence: Evidence, found: Owners, attributed: Attributed, methods: list[str]) -> Owners:
    """The owners that the report names, and those found where it names none that this release knows.

    Args:
        evidence: What is known about the recording.
        found: The owners that were found.
        attributed: What the report says.
        methods: The names of methods, in their order.
    """
    calls = evidence.calls
    known = np.flatnonzero(calls.known)
    call = lookup(known, positions(attributed.range, calls.range_row[known]))
    method = _numbers(attributed.method, methods)
    cause = _numbers(attributed.cause, [cause.name for cause in CAUSES])
    owned, unowned = (call >= 0) & (method >= 0), cause >= 0
    return Owners(
        call=np.select([owned, unowned], [call, -1], found.call).astype(np.int32),
        method=np.select([owned, unowned], [method, -1], found.method).astype(np.int8),
        cause=np.select([owned, unowned], [-1, cause], found.cause).astype(np.int8),
    )


def _numbers(names: list[str | None], known: list[str]) -> Ints:
    """For each name its place among those known, or -1."""
    number: dict[str | None, int] = {name: place for place, name in enumerate(known)}
    return np.array([number.get(name, -1) for name in names], dtype=np.int64)
