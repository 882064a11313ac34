"""When the sessions of a dataset's reports began, and whether their processes can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.labels import labels
from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

_BEGINNINGS = (
    *((table, "start_ns") for table in ("steps", "calls", "ranges", "kernels")),
    ("kernels", "launch_start_ns"),
)
#: Ids of threads are sorted without their sign.
_UNSIGNED = 0xFFFF_FFFF


def earliest(dataset: Dataset, offset: dict[str, int]) -> int:
    """When the first slice begins, on the common clock; 0 if there is none."""
    firsts = (
        (pc.min(piece.column(column)).as_py(), offset[piece.column(REPORT)[0].as_py()] if offset else 0)
        for table, column in _BEGINNINGS
        for piece in dataset.pieces(table, [column, *([REPORT] if offset else [])])
        if piece.num_rows
    )
    return min((first + later for first, later in firsts if first is not None), default=0)


def ambiguous_processes(dataset: Dataset) -> bool:
    """Whether processes of several machines have one id.

    Then ranges, which tables hold sorted one machine after the other, begin anew, or the numbers of calls do.
    """
    return _sorted_anew(dataset) or _numbered_anew(dataset)


def _numbered_anew(dataset: Dataset) -> bool:
    """Whether two calls of a process have one number."""
    keys = ["pid", "module_id", "occurrence"]
    categories = ["phase", *([REPORT] if dataset.reports else [])]
    calls = dataset.table("calls", [*keys, *categories])
    columns = [*(labels(calls, name).code for name in categories), *(integers(calls, key) for key in keys)]
    return bool(grouped(columns).first.size < calls.num_rows)


def _sorted_anew(dataset: Dataset) -> bool:
    last: tuple[Any, ...] = ()
    for piece in dataset.pieces("ranges", ["pid", "tid", "start_ns", *([REPORT] if dataset.reports else [])]):
        report = piece.column(REPORT)[0].as_py() if dataset.reports and piece.num_rows else ""
        place = [integers(piece, name).astype(np.int64) for name in ("pid", "tid", "start_ns")]
        place[1] &= _UNSIGNED
        if last[:1] == (report,):
            place = [np.insert(column, 0, before) for column, before in zip(place, last[1:], strict=True)]
        if (np.diff(np.lexsort(place[::-1])) < 0).any():
            return True
        if piece.num_rows:
            last = (report, *(int(column[-1]) for column in place))
    return False


def started(dataset: Dataset) -> int | None:
    """The time from which times count, in nanoseconds since 1970; None if that is not known."""
    entries = dataset.manifest.get("reports") or [dataset.manifest]
    started = [entry["source"].get("started_utc_ns") for entry in entries]
    return None if None in started else min(started)


def offsets(dataset: Dataset) -> dict[str, int]:
    """What to add to the times of each report to put all on one clock; 0 if the start of some report is unknown."""
    entries = dataset.manifest.get("reports", [])
    started = [entry["source"].get("started_utc_ns") for entry in entries]
    known = [start_ns for start_ns in started if start_ns is not None]
    if len(known) < len(started):
        return dict.fromkeys(dataset.reports, 0)
    return {entry["name"]: start_ns - min(known) for entry, start_ns in zip(entries, known, strict=True)}
