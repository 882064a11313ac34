"""When the sessions of a dataset's reports began, and whether their processes can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

_BEGINNINGS = (
    *((table, "start_ns") for table in ("steps", "calls", "ranges", "kernels")),
    ("kernels", "launch_start_ns"),
)


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
    """Whether processes of several machines have one id, so that tables do not tell them apart."""
    entries = dataset.manifest.get("reports") or [dataset.manifest]
    return any(entry.get("processes_share_ids") for entry in entries)


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
