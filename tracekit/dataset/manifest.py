"""``manifest.json``: which reports a dataset was made from, and the ids that tie its tables to this one parse.

Every file of a table carries an id, a digest of its rows; the manifest lists these ids. Its own id is a digest of its
other fields except ``source``, which may be corrected by hand, for example where a clock was wrong. A dataset of
several reports has an entry for each, and what is true of all together.
"""

from __future__ import annotations

import glob
import hashlib
import json
import reprlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_type_hints

from tracekit.causes import LEFT_OUT, LOSSES, MODULES_DIFFER, REPORT
from tracekit.errors import DatasetError
from tracekit.files import is_name, similar
from tracekit.recording.provenance import LATEST_UTC_NS, Gpu, Source
from tracekit.storage.locations import Location, is_remote, reachable, text_of

#: Bumped when a table is added, and when a column or a field that readers rely on is renamed or changes its type.
FORMAT_VERSION = 4
FORMAT = "tracekit dataset"
MANIFEST = "manifest.json"
#: The manifest's own id, and the ids of the tables' files.
ID, TABLE_IDS = "id", "table_ids"

#: Fields of a single report's manifest that are the same for all reports of a dataset.
_COMMON = ("format", "format_version", "tracekit", ID)
_SOURCE = "source"
#: How long a report lasts, from its start.
_LENGTH = "length_ns"
_AGAIN = "parse the report again"
#: What is known of these is counted; of all else it is the share of time.
_SHARES_OF_COUNTS = {"ranges", "processes"}


def new_id(start: bytes) -> hashlib.blake2b:
    """A digest that becomes an id."""
    return hashlib.blake2b(start, digest_size=16)


def write(folder: Path, fields: Mapping[str, object]) -> None:
    """Writes the manifest, the last file of a dataset."""
    (folder / MANIFEST).write_text(as_text(fields), "utf-8")


def as_text(fields: Mapping[str, object]) -> str:
    """The text of a manifest with these fields and its id."""
    whole = json.loads(json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, **fields}))
    whole[ID] = _id_of(whole)
    if "reports" not in whole:
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    import msgspec  # noqa: PLC0415 - pays where there is much to indent, in which json is slow

    return msgspec.json.format(json.dumps(whole, ensure_ascii=False), indent=2) + "\n"


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
    try:
        as_written = fields.get(ID) == _id_of(fields)
    except (AttributeError, TypeError, RecursionError):  # reports that are no list of objects, or too deep
        as_written = False
    if not as_written:
        raise DatasetError(folder, "its manifest.json was changed after it was written", f"undo that, or {_AGAIN}")
    if flaw := _flaw_of(fields):
        raise DatasetError(folder, f"its manifest.json is damaged ({flaw})", _AGAIN)
    return fields


def _json(folder: Location, attempts: int = 10) -> object:
    path = folder / MANIFEST
    try:
        return json.loads(text_of(path), parse_constant=_no_number)
    except NotADirectoryError:
        problem = "is a file, not a dataset"
        remedy = f"if it is a report, read it with tracekit parse {shlex.quote(str(folder))}"
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
    from tracekit.readers import is_report  # noqa: PLC0415 - rarely needed

    close = similar(folder, lambda path: is_manifest(path / MANIFEST) or is_report(path))
    return "does not exist", f"did you mean {close}?" if close else "expected a dataset, or a report"


def _id_of(fields: dict[str, Any]) -> str:
    def kept(part: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name not in {ID, _SOURCE}}

    whole = kept(fields)
    if "reports" in whole:
        whole["reports"] = [kept(entry) for entry in whole["reports"]]
    return new_id(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def of_same_processes(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """For every report the first one of the same processes: profilers write one for each cycle of a schedule.

    Without a rank, equal ids may be those of processes on several machines, whose reports cover the same time.
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


def differing_in(coverage: Sequence[Mapping[str, Any]]) -> int:
    """How many modules are described in different ways, from the rows of ``coverage``."""
    return sum(row["count"] for row in coverage if row["cause"] == MODULES_DIFFER.name)


def entry_of(name: str, first_id: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """One report's entry, made of its own manifest, without the ids of the files that become those of all."""
    about = {field: value for field, value in own.items() if field not in _COMMON}
    ids = {table: id_ for table, id_ in own[TABLE_IDS].items() if table != "modules"}
    return {"name": name, "first_id": first_id, **about, TABLE_IDS: ids}


def of_reports(whole: Mapping[str, Any], entries: list[dict[str, Any]], modules: int) -> dict[str, Any]:
    """The manifest of a dataset with some reports; ``whole`` has what is not of one report, ``modules`` are of all."""
    rows = {name: sum(entry["rows"].get(name, 0) for entry in entries) for name in entries[0]["rows"]}
    wholes = rows | {
        "launches": sum(entry["launches"] for entry in entries),
        "processes": sum(len(entry["processes"]) for entry in entries),
        REPORT: len(entries),
    }
    coverage = total_coverage([row for entry in entries for row in entry["coverage"]], wholes)
    return {**whole, "reports": entries, "rows": rows | {"modules": modules}, "coverage": coverage}


def total_coverage(
    rows: Sequence[Mapping[str, Any]], wholes: Mapping[str, int], counted_once: str | None = None
) -> list[dict[str, Any]]:
    """The rows of ``coverage`` of several parts as those of a whole.

    ``wholes`` says how many rows each table has, and how many launches, processes and reports there are. Figures
    ``counted_once`` are equal in every part.
    """
    totals: dict[tuple[str, str, str, bool], dict[str, Any]] = {}
    for row in rows:
        key = (row["what"], row["cause"], row["detail"], row["known"])
        total = totals.setdefault(key, {**row, "count": 0, "time_ns": 0})
        if not total["count"] or row["what"] != counted_once:
            total["count"] += row["count"]
            total["time_ns"] += row["time_ns"]
    time_ns = sum(total["time_ns"] for total in totals.values() if total["what"] == "kernels")
    wholes = {**wholes, "events": wholes.get("ranges", 0)}
    for total in totals.values():
        what = total["what"].removesuffix(LOSSES).removesuffix(LEFT_OUT)
        if what == total["what"] and what not in _SHARES_OF_COUNTS:
            total["share"] = total["time_ns"] / max(1, time_ns)
        else:
            total["share"] = min(1.0, total["count"] / max(1, wholes.get(what, wholes.get("kernels", 0))))
    return list(totals.values())


# Which fields a manifest has, and of what kind: a dataset may come from anybody, and readers rely on them.

#: What a field is: a type or a union of some, a list of one kind, or an object.
_Kind = Any


class _Object(NamedTuple):
    """An object: fields that it has, and that it may have; ``others`` is the kind of all else, if that matters."""

    fields: Mapping[str, _Kind]
    optional: Mapping[str, _Kind] = {}
    others: _Kind = object


_TEXT = str | None
_SOURCE_FIELDS = _Object(get_type_hints(Source))
_COVERAGE = _Object(
    dict.fromkeys(("what", "cause", "detail", "advice"), str)
    | {"known": bool, "count": int, "time_ns": int, "share": float | int}
)
_FILES = {
    "rows": _Object(dict.fromkeys(("kernels", "calls", "modules", "steps"), int), others=int),
    "table_ids": _Object({}, others=_TEXT),
    "coverage": [_COVERAGE],
}
_REPORT = _FILES | {
    "hierarchy": _Object({"by": str, "asked": str}),
    "folder": str,
    "source": _SOURCE_FIELDS,
    "processes": [_Object({"pid": int, "name": _TEXT})],
    "processes_share_ids": bool,
    "devices": [_Object({"device": int, **get_type_hints(Gpu)})],
    "ranks": [_Object({"pid": int, "rank": int, "source": str})],
    "missing": [_Object({"what": str, "remedy": str})],
    "length_ns": int,
    "launches": int,
    "graph_captures": [_SOURCE_FIELDS],
}
_CHOSEN = {"like": [_Object({"name": str, "steps": [int], "kernels": int})], "collectives": [str]}
_ONE = _Object({"tracekit": str, **_REPORT}, _CHOSEN)
_SEVERAL = _Object(
    {
        "tracekit": str,
        "reports": [_Object({"name": str, "first_id": int, **_REPORT}, _CHOSEN)],
        "left_out": [_Object({"name": str, "problem": str})],
        **_FILES,
    }
)


def _flaw_of(fields: Mapping[str, Any]) -> str | None:
    """The first field that is absent, or not what it should be; None if there is none."""
    several = "reports" in fields
    if flaw := _flaw(fields, _SEVERAL if several else _ONE, ""):
        return flaw
    entries = fields["reports"] if several else [fields]
    starts = [start for entry in entries if (start := entry["source"]["started_utc_ns"]) is not None]
    wrong = next((f"started_utc_ns is {start}" for start in starts if not 0 <= start < LATEST_UTC_NS), None)
    return wrong if entries else "reports is []"


def _flaw(value: object, kind: _Kind, place: str) -> str | None:
    inside: Iterable[str | None] = ()
    if isinstance(kind, _Object) and isinstance(value, dict):
        if absent := next((name for name in kind.fields if name not in value), None):
            return f"it has no {place}.{absent}".replace(" .", " ")
        kinds = {**dict.fromkeys(value, kind.others), **kind.fields, **kind.optional}
        inside = (_flaw(item, kinds[name], f"{place}.{name}".lstrip(".")) for name, item in value.items())
    elif isinstance(kind, list) and isinstance(value, list):
        inside = (_flaw(item, kind[0], f"{place}[{at}]") for at, item in enumerate(value))
    elif isinstance(kind, _Object | list) or not isinstance(value, kind) or not _is_bounded(value):
        return f"{place} is {reprlib.repr(value)}"
    return next(filter(None, inside), None)


def _is_bounded(value: object) -> bool:
    """Whether a number fits into 64 bits, and a text can be written and be part of a path."""
    return is_name(value) if isinstance(value, str) else not isinstance(value, int) or abs(value) < 1 << 63
