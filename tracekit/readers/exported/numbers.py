"""Numbers that each report of a dataset counts by itself, told apart: an export is read as one report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.readers.exported.events import Other
    from tracekit.readers.exported.gathering import Track

    Drawn = Mapping[tuple[int, int], Track]

#: A process or a GPU by its report and the number that it has there.
Numbered = tuple[str | None, int]


def numbered(entry: Mapping[str, int | float | str | None], name: str) -> Numbered | None:
    """What an entry of an export's lists is about; None if it is not as exports have it."""
    report, number = entry.get("report"), entry.get(name)
    return (report, number) if isinstance(report, str | None) and isinstance(number, int) else None


def apart(owners: Iterable[Numbered], drawn: Drawn, step: int) -> dict[Numbered, int]:
    """A number for each: its own, unless an earlier report has the same.

    Args:
        owners: Processes or GPUs.
        drawn: What the export says of its tracks, those of the first report first.
        step: What is added until a number is free.
    """
    place = {report: at for at, report in enumerate(dict.fromkeys(track.report for track in drawn.values()))}
    numbers: dict[Numbered, int] = {}
    taken: set[int] = set()
    for report, own in sorted(set(owners), key=lambda one: (place.get(one[0], len(place)), one[1])):
        number = own
        while number in taken:
            number += step
        numbers[report, own] = number
        taken.add(number)
    return numbers


def gpus_apart(work: pa.Table, drawn: Drawn, other: Other) -> tuple[pa.Table, dict[Numbered, int]]:
    """The work with the numbers of its GPUs, and these by their reports and the numbers that they have there."""
    known = np.flatnonzero(work.column("device").is_valid())
    pid, tid, device = (integers(work, name)[known] for name in ("pid", "tid", "device"))
    code, first = grouped([pid, tid, device])
    tracks = zip(pid[first].tolist(), tid[first].tolist(), strict=True)
    used = [(drawn[track].report, number) for track, number in zip(tracks, device[first].tolist(), strict=True)]
    numbers = apart([*used, *(gpu for one in other.devices if (gpu := numbered(one, "device")))], drawn, 1)
    column = integers(work, "device").copy()
    column[known] = np.array([numbers[one] for one in used], dtype=np.int64)[code]
    mask = np.asarray(work.column("device").is_null())
    return work.set_column(work.column_names.index("device"), "device", pa.array(column, mask=mask)), numbers
