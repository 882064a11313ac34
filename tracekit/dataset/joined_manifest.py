"""The manifest of a dataset of several reports: an entry for each, and what is true of all together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.causes import LEFT_OUT, LOSSES, REPORT
from tracekit.causes.reports import MODULES_DIFFER
from tracekit.dataset import manifest
from tracekit.tables.coverage import Row, table_of
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

#: Fields of a single report's manifest that are the same for all reports of a dataset.
_COMMON = ("format", "format_version", "tracekit", manifest.ID)
#: How many modules of a report differ, each by whom they are described: by itself and by other reports.
_DIFFERING = "modules_differ"


def describes_modules_twice(own: Mapping[str, Any]) -> bool:
    """Whether one report describes some module in different ways."""
    return bool(_differing_by_itself(own))


def _differing_by_itself(own: Mapping[str, Any]) -> int:
    return sum(row["count"] for row in own["coverage"] if row["cause"] == MODULES_DIFFER.name)


def entry_of(name: str, first_id: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """One report's entry, made of its own manifest, without the ids of the files that become those of all."""
    about = {field: value for field, value in own.items() if field not in _COMMON}
    ids = {table: id_ for table, id_ in own[manifest.TABLE_IDS].items() if table != "modules"}
    differing = {"itself": _differing_by_itself(own), "others": 0}
    return {"name": name, "first_id": first_id, **about, manifest.TABLE_IDS: ids, _DIFFERING: differing}


def with_differing(entry: dict[str, Any], others: int) -> pa.Table | None:
    """Counts the modules that differ between reports in one report's entry.

    Args:
        entry: The entry, which is changed.
        others: How many modules of the report are described differently by another report.

    Returns:
        The report's table ``coverage``; None if it stays as it is.
    """
    differing = entry[_DIFFERING]
    if others == differing["others"]:
        return None
    entry[_DIFFERING] = {**differing, "others": others}
    known = entry["rows"]["modules"]
    rows = [
        Row(row["what"], row["cause"], row["known"], row["count"], row["time_ns"], row["share"], row["advice"])
        for row in entry["coverage"]
        if row["cause"] != MODULES_DIFFER.name
    ]
    # The same module may differ between processes of one report and between reports.
    if number := min(others + differing["itself"], known):
        rows.append(Row(f"modules{LOSSES}", MODULES_DIFFER.name, False, number, 0, number / known))  # noqa: FBT003
    table = table_of(rows)
    entry["coverage"], entry["rows"] = table.to_pylist(), {**entry["rows"], "coverage": table.num_rows}
    return table


def manifest_of(
    entries: list[dict[str, Any]], left_out: list[dict[str, str]], modules: int, ids: Mapping[str, str | None]
) -> dict[str, Any]:
    """The manifest of the whole dataset.

    Args:
        entries: Those of the reports.
        left_out: Name and problem of each report that could not be read.
        modules: How many modules all have together.
        ids: Those of the files that are not of one report.
    """
    rows = {name: sum(entry["rows"][name] for entry in entries) for name in entries[0]["rows"]}
    rows["modules"] = modules
    return {
        "tracekit": __version__,
        "reports": entries,
        "left_out": left_out,
        "rows": rows,
        manifest.TABLE_IDS: ids,
        "coverage": _total_coverage(entries, rows),
    }


def manifest_of_some(whole: Mapping[str, Any], entries: list[dict[str, Any]], modules: int) -> dict[str, Any]:
    """The manifest of a dataset as if it had only some of its reports; ``modules`` are those of all."""
    [first, *others] = entries
    rows = {name: sum(entry["rows"][name] for entry in entries) for name in first["rows"]} | {"modules": modules}
    coverage = _total_coverage(entries, rows) if others else first["coverage"]
    return {**whole, "reports": entries, "rows": rows, "coverage": coverage}


def _total_coverage(entries: list[dict[str, Any]], rows: dict[str, int]) -> list[dict[str, Any]]:
    """The coverage of all reports together."""
    totals: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for row in (row for entry in entries for row in entry["coverage"]):
        key = (row["what"], row["cause"], row["known"])
        total = totals.setdefault(key, {**row, "count": 0, "time_ns": 0})
        total["count"] += row["count"]
        total["time_ns"] += row["time_ns"]
    time_ns = sum(row["time_ns"] for row in totals.values() if row["what"] == "kernels")
    wholes = _wholes(entries, rows)
    for row in totals.values():
        if row["what"] == "kernels":
            row["share"] = row["time_ns"] / time_ns if time_ns else 0.0
        else:
            kind = row["what"].removesuffix(LOSSES).removesuffix(LEFT_OUT)
            row["share"] = min(1.0, row["count"] / max(1, wholes.get(kind, rows["kernels"])))
    return list(totals.values())


def _wholes(entries: list[dict[str, Any]], rows: dict[str, int]) -> dict[str, int]:
    """How many there are of each kind of thing that coverage counts."""
    return rows | {
        "launches": sum(entry["launches"] for entry in entries),
        "modules": sum(entry["rows"]["modules"] for entry in entries),
        "processes": sum(len(entry["processes"]) for entry in entries),
        "events": rows["ranges"],
        REPORT: len(entries),
    }
