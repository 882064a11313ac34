"""The coverage of a report out of those of its stretches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.attribution import METHODS
from tracekit.causes import ADVICE, BY_NAME, CAUSES, LEFT_OUT, LOSSES, REPORT
from tracekit.readers.stretches.survey import NotCuttable
from tracekit.tables import coverage
from tracekit.tables.coverage import PLAIN, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tracekit.dataset.stretches.parts import Part

_Key = tuple[str, str, bool]
_KERNELS, _RANGES = "kernels", "ranges"
#: Each of these in the order in which the table lists it.
_CODES = {
    _KERNELS: [*(method.NAME for method in METHODS), *(cause.name for cause in CAUSES)],
    _RANGES: ["marker", PLAIN, *(cause.name for cause in CAUSES)],
}


def added_up(
    parts: Sequence[Part], repeated: Mapping[str, tuple[int, int]], rows: Mapping[str, int]
) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The table ``coverage``.

    Args:
        parts: The stretches.
        repeated: By cause the number and the time of ranges that stretches repeat.
        rows: How many rows each table of the report has, and how many launches and processes there are.

    Raises:
        NotCuttable: If something was counted that does not add up.
    """
    counts: dict[_Key, list[int]] = {}
    for part in parts:
        for row in part.file("coverage").read().to_pylist():
            total = counts.setdefault((row["what"], row["cause"], row["known"]), [0, 0])
            total[0] += row["count"]
            total[1] += row["time_ns"]
    for cause, (number, time_ns) in repeated.items():
        total = counts[_RANGES, cause, True]
        total[0] -= number
        total[1] -= time_ns
    counts = {key: total for key, total in counts.items() if total[0]}
    spent = sum(time_ns for (what, *_), (_, time_ns) in counts.items() if what == _KERNELS)
    ordered = sorted(counts, key=_place)
    advice = {cause: text for part in parts for cause, text in part.advice.items()}
    table = coverage.table_of(
        [Row(*key, counts[key][0], counts[key][1], _share(key, counts[key], spent, rows)) for key in ordered],
        ADVICE | advice,
    )
    return table, table.to_pylist()


def _share(key: _Key, total: list[int], spent: int, rows: Mapping[str, int]) -> float:
    what = key[0]
    if what == _KERNELS:
        return total[1] / spent if spent else 0.0
    if what == _RANGES:
        return total[0] / rows[_RANGES]
    subject = what.removesuffix(LOSSES).removesuffix(LEFT_OUT)
    wholes = {name: rows[name] for name in ("ranges", "launches", "calls", "processes")}
    whole = (wholes | {"events": rows[_RANGES], REPORT: 1}).get(subject, rows[_KERNELS])
    return min(1.0, total[0] / max(1, whole))


def _place(key: _Key) -> tuple[int, int, int, str, str]:
    """Where a row stands in the table: kernels, ranges, then losses by subject and cause."""
    what, cause, known = key
    if what in _CODES:
        return [*_CODES].index(what), int(not known) if what == _KERNELS else 0, _CODES[what].index(cause), "", ""
    subject = what.removesuffix(LOSSES).removesuffix(LEFT_OUT)
    if subject == what or cause not in BY_NAME:
        raise NotCuttable(f"{what} whose counts do not add up")
    return len(_CODES), 0, 0, subject, cause
