"""``manifest.json``: which reports a dataset was made from, and the ids that tie its tables to this one parse.

Every file of a table carries an id, a digest of its rows; the manifest lists these ids. Its own id is a digest of its
other fields except ``source``, which may be corrected by hand, for example where a clock was wrong. A dataset of
several reports has an entry for each, and what is true of all together.
"""

import glob
import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import pyarrow as pa

from tracekit.causes import LEFT_OUT, LOSSES, MODULES_DIFFER, REPORT
from tracekit.errors import DatasetError
from tracekit.recording.provenance import LATEST_UTC_NS, Source
from tracekit.storage.locations import Location, is_remote, reachable, text_of
from tracekit.tables.coverage import Row, table_of
from tracekit.version import __version__

#: The field that says how files are named, if not all by their tables alone.
FILES, NAMED_BY_ID = "files", "named_by_id"
#: Bumped when a table is added, and when a column or a field that readers rely on is renamed or changes its type.
FORMAT_VERSION = 3
FORMAT = "tracekit dataset"
MANIFEST = "manifest.json"
#: The manifest's own id, and the ids of the tables' files.
ID, TABLE_IDS = "id", "table_ids"
#: The table that keeps the modules of each report only.
PER_REPORT_MODULES = "modules_of_reports"

#: Fields of a single report's manifest that are the same for all reports of a dataset.
_COMMON = ("format", "format_version", "tracekit", ID)
#: How many modules of a report differ, each by whom they are described: by itself and by other reports.
_DIFFERING = "modules_differ"
_SOURCE = "source"
_ID_BYTES = 16
#: How long a report lasts, from its start.
_LENGTH = "length_ns"
_AGAIN = "parse the report again"
#: How often a dataset is looked for that other parses keep replacing.
_ATTEMPTS = 10


def new_id(start: bytes) -> hashlib.blake2b:
    """A digest that becomes an id."""
    return hashlib.blake2b(start, digest_size=_ID_BYTES)


def write(folder: Path, fields: Mapping[str, object]) -> None:
    """Writes the manifest, the last file of a dataset."""
    (folder / MANIFEST).write_text(as_text(fields), "utf-8")


def as_text(fields: Mapping[str, object]) -> str:
    """The text of a manifest with these fields and its id."""
    whole = {"format": FORMAT, "format_version": FORMAT_VERSION, **fields}
    as_read = json.loads(json.dumps(whole))
    return _indented({**as_read, ID: _id_of(as_read)}) + "\n"


def _indented(fields: dict[str, object]) -> str:
    if "reports" not in fields:
        return json.dumps(fields, indent=2, ensure_ascii=False)
    import msgspec  # noqa: PLC0415 - pays where there is much to indent, in which json is slow

    return msgspec.json.format(json.dumps(fields, ensure_ascii=False), indent=2)


def is_as_read(folder: Path, fields: Mapping[str, object]) -> bool:
    """Whether the manifest of a dataset is still the one that was read."""
    try:
        return bool(_json(folder) == fields)
    except DatasetError:
        return False


def is_manifest(path: Location) -> bool:
    """Whether a file is the manifest of a dataset, of any version."""
    try:
        return bool(json.loads(text_of(path))["format"] == FORMAT)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def read(folder: Location) -> dict[str, Any]:
    """The manifest of a dataset.

    Raises:
        DatasetError: If the folder is not a dataset, has another format version, or its manifest was changed.
    """
    with reachable(folder, DatasetError) if is_remote(folder) else nullcontext():
        fields = _json(folder)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise DatasetError(
            folder, "its manifest.json was not written by tracekit", "make a dataset with tracekit parse"
        )
    if fields.get("format_version") != FORMAT_VERSION:
        version = reprlib.repr(fields.get("format_version"))
        problem = f"has format version {version}, this tracekit reads {FORMAT_VERSION}"
        raise DatasetError(folder, problem, _AGAIN)
    if not _as_written(fields):
        problem = "its manifest.json was changed after it was written"
        raise DatasetError(folder, problem, f"undo that, or {_AGAIN}")
    if flaw := next(filter(None, map(_flaw_of_source, fields.get("reports", [fields]))), None):
        raise DatasetError(folder, f"its manifest.json is damaged ({flaw})", _AGAIN)
    return fields


def _as_written(fields: dict[str, Any]) -> bool:
    try:
        return bool(fields.get(ID) == _id_of(fields))
    except (AttributeError, TypeError, RecursionError):  # reports that are no list of objects, or too deep
        return False


def _flaw_of_source(entry: Mapping[str, Any]) -> str | None:
    source = entry.get(_SOURCE)
    if not isinstance(source, dict):
        return f"{_SOURCE} is no object"
    for name, kind in get_type_hints(Source).items():
        if name not in source or not isinstance(source[name], kind):
            return f"{_SOURCE}.{name} is {reprlib.repr(source.get(name))}"
    started = source.get("started_utc_ns")
    return None if started is None or 0 <= started < LATEST_UTC_NS else f"started_utc_ns is {started}"


def _json(folder: Location, attempts: int = _ATTEMPTS) -> object:
    path = folder / MANIFEST
    try:
        return json.loads(text_of(path), parse_constant=_no_number)
    except NotADirectoryError:
        problem = "is a file, not a dataset"
        remedy = f"if it is a report, read it with tracekit parse {folder}"
    except FileNotFoundError:
        problem, remedy = _missing(folder)
        if attempts and not is_remote(path) and path.exists():  # a parse has put its dataset there since
            return _json(folder, attempts - 1)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and is_remote(folder):
            raise
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        problem, remedy = f"its manifest cannot be read ({reason})", _AGAIN
    raise DatasetError(folder, problem, remedy)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _missing(folder: Location) -> tuple[str, str]:
    if not isinstance(folder, Path):
        return "is not a dataset: it has no manifest.json", "check the URL, or make a dataset there with tracekit parse"
    if folder.exists():
        return "is not a dataset: it has no manifest.json", "make one with tracekit parse"
    place = folder.resolve()
    if aside := sorted(place.parent.glob(f".{glob.escape(place.name)}.old-*")):
        problem = "is being replaced by a parse, or a parse was killed while it replaced it"
        return problem, f"try again in a moment; if no parse is running, restore it: rename {aside[0]} to {place.name}"
    return "is not a dataset: no such folder", "make one with tracekit parse"


def _id_of(fields: dict[str, Any]) -> str:
    kept = _without_source(fields)
    if "reports" in kept:
        kept["reports"] = [_without_source(entry) for entry in kept["reports"]]
    return new_id(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _without_source(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in {ID, _SOURCE}}


def of_same_processes(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """For every report the first one of the same processes: profilers write one for each cycle of a schedule.

    Without a rank, equal ids may be those of processes on several machines, whose reports are of the same time.
    """
    groups: dict[object, list[int]] = {}
    for at, entry in enumerate(entries):
        ranks = sorted({claim["rank"] for claim in entry.get("ranks", ())})
        pids = sorted({process["pid"] for process in entry["processes"]})
        key = (entry[_SOURCE].get("host"), *pids, "ranks", *ranks)
        group = groups.get(key, [])
        same = bool(ranks) or (len(pids) == 1 and all(_are_apart(entries[other], entry) for other in group))
        groups.setdefault(key if same else at, []).append(at)
    first = {at: group[0] for group in groups.values() for at in group}
    return [first[at] for at in range(len(entries))]


def _are_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    spans = [(entry[_SOURCE]["started_utc_ns"], entry.get(_LENGTH)) for entry in (one, other)]
    if any(None in span for span in spans):
        return False
    (start, length), (next_start, _) = sorted(spans)
    return bool(start + length <= next_start)


def differing_by_itself(own: Mapping[str, Any]) -> int:
    """How many modules one report describes in different ways."""
    return sum(row["count"] for row in own["coverage"] if row["cause"] == MODULES_DIFFER.name)


def entry_of(name: str, first_id: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """One report's entry, made of its own manifest, without the ids of the files that become those of all."""
    about = {field: value for field, value in own.items() if field not in _COMMON}
    ids = {table: id_ for table, id_ in own[TABLE_IDS].items() if table != "modules"}
    differing = {"itself": differing_by_itself(own), "others": 0}
    return {"name": name, "first_id": first_id, **about, TABLE_IDS: ids, _DIFFERING: differing}


def count_differing(entry: dict[str, Any], others: int) -> pa.Table | None:
    """Notes in a report's entry how many of its modules others describe differently; its new coverage, if any."""
    differing = entry[_DIFFERING]
    if others == differing["others"]:
        return None
    entry[_DIFFERING] = {**differing, "others": others}
    known = entry["rows"]["modules"]
    rows = [
        Row(**{("number" if key == "count" else key): value for key, value in row.items()})
        for row in entry["coverage"]
        if row["cause"] != MODULES_DIFFER.name
    ]
    # The same module may differ between processes of one report and between reports.
    if number := min(others + differing["itself"], known):
        row = Row(f"modules{LOSSES}", MODULES_DIFFER.name, False, number, 0, number / known)  # noqa: FBT003
        rows.append(row._replace(advice=MODULES_DIFFER.advice))
    table = table_of(rows)
    entry["coverage"], entry["rows"] = table.to_pylist(), {**entry["rows"], "coverage": table.num_rows}
    return table


def of_several(
    entries: list[dict[str, Any]], left_out: list[dict[str, str]], modules: int, ids: Mapping[str, str | None]
) -> dict[str, Any]:
    """The manifest of the whole dataset; the ids are those of the files that are not of one report."""
    rows = {name: sum(entry["rows"][name] for entry in entries) for name in entries[0]["rows"]}
    rows["modules"] = modules
    return {
        "tracekit": __version__,
        "reports": entries,
        "left_out": left_out,
        "rows": rows,
        TABLE_IDS: ids,
        "coverage": _total_coverage(entries, rows),
    }


def of_some(whole: Mapping[str, Any], entries: list[dict[str, Any]], modules: int) -> dict[str, Any]:
    """The manifest of a dataset as if it had only some of its reports; ``modules`` are those of all."""
    [first, *others] = entries
    rows = {name: sum(entry["rows"][name] for entry in entries) for name in first["rows"]} | {"modules": modules}
    coverage = _total_coverage(entries, rows) if others else first["coverage"]
    return {**whole, "reports": entries, "rows": rows, "coverage": coverage}


def _total_coverage(entries: list[dict[str, Any]], rows: dict[str, int]) -> list[dict[str, Any]]:
    totals: dict[tuple[str, str, str, bool], dict[str, Any]] = {}
    for row in (row for entry in entries for row in entry["coverage"]):
        key = (row["what"], row["cause"], row["detail"], row["known"])
        total = totals.setdefault(key, {**row, "count": 0, "time_ns": 0})
        total["count"] += row["count"]
        total["time_ns"] += row["time_ns"]
    time_ns = sum(row["time_ns"] for row in totals.values() if row["what"] == "kernels")
    wholes = rows | {
        "launches": sum(entry["launches"] for entry in entries),
        "modules": sum(entry["rows"]["modules"] for entry in entries),
        "processes": sum(len(entry["processes"]) for entry in entries),
        "events": rows["ranges"],
        REPORT: len(entries),
    }
    for row in totals.values():
        if row["what"] == "kernels":
            row["share"] = row["time_ns"] / time_ns if time_ns else 0.0
        else:
            kind = row["what"].removesuffix(LOSSES).removesuffix(LEFT_OUT)
            row["share"] = min(1.0, row["count"] / max(1, wholes.get(kind, rows["kernels"])))
    return list(totals.values())
