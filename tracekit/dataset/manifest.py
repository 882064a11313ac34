"""``manifest.json``: which report a dataset was made from, and the ids that tie its tables to this one parse.

Every file of a table carries an id, a digest of its rows; the manifest lists these ids. Its own id is a digest of its
other fields except ``source``, which may be corrected by hand, for example where a clock was wrong.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import reprlib
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.errors import DatasetError
from tracekit.markers.kinds import HIERARCHIES
from tracekit.recording.provenance import LATEST_UTC_NS
from tracekit.storage.failures import reachable
from tracekit.storage.locations import is_remote, text_of
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.storage.locations import Location

#: The field that says how files are named, if not all by their tables alone.
FILES, NAMED_BY_ID = "files", "named_by_id"
#: Bumped when a column is renamed or changes its type.
FORMAT_VERSION = 1
FORMAT = "tracekit dataset"
MANIFEST = "manifest.json"
#: The manifest's own id, and the ids of the tables' files. Early datasets of version 0.1.0 have neither.
ID, TABLE_IDS = "id", "table_ids"

_SOURCE = "source"
_ID_BYTES = 16
#: More than any sum over reports.
_MOST = 1 << 80
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


def is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of a dataset, of any version."""
    try:
        return bool(json.loads(path.read_text("utf-8"))["format"] == FORMAT)
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
    if flaw := _flaw(fields, _SEVERAL if "reports" in fields else _SINGLE, ""):
        raise DatasetError(folder, f"its manifest.json is damaged ({flaw})", _AGAIN)
    if fields.get("reports") == []:
        raise DatasetError(folder, "its manifest.json is damaged (reports is [])", _AGAIN)
    if not _as_written(fields):
        problem = "its manifest.json was changed after it was written"
        raise DatasetError(folder, problem, f"undo that, or {_AGAIN}")
    return fields


def _as_written(fields: dict[str, Any]) -> bool:
    """Whether the manifest's id is right, or neither it nor any report has one."""
    if ID not in fields and all(TABLE_IDS not in entry for entry in (fields, *fields.get("reports", ()))):
        return True
    try:
        return bool(fields.get(ID) == _id_of(fields))
    except RecursionError:
        return False


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
    """Why there is no manifest, and what to do."""
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
    """A digest of all fields but the id itself and the descriptions of sources."""
    kept = _without_source(fields)
    if "reports" in kept:
        kept["reports"] = [_without_source(entry) for entry in kept["reports"]]
    return new_id(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _without_source(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in {ID, _SOURCE}}


def _text(value: object) -> bool:
    """Text that can be encoded: JSON may contain lone surrogates."""
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode("utf-8")


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


def _time(value: object) -> bool:
    return isinstance(value, int) and _count(value) and value < LATEST_UTC_NS


def _share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _hierarchy(value: object) -> bool:
    return value in HIERARCHIES


def _files(value: object) -> bool:
    return value == NAMED_BY_ID


def _or_null(shape: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or shape(value)


#: What readers rely on. A shape is a predicate, a list with the shape of each entry, or a dictionary with the shape of
#: each member; names of optional members end in ``?``.
_COUNTED = {
    "rows": {table.SPEC.name: _count for table in TABLES},
    "coverage": [
        {
            "what": _text,
            "cause": _text,
            "known": _flag,
            "count": _number,
            "time_ns": _number,
            "share": _share,
            "advice": _text,
        },
    ],
}
_REPORT = {
    **_COUNTED,
    "source": {
        "name": _text,
        "format": _text,
        "exporter": _or_null(_text),
        "schema_version": _or_null(_text),
        "started_utc_ns": _or_null(_time),
        "host?": _or_null(_text),
    },
    "processes": [{"pid": _number, "name": _or_null(_text)}],
    "processes_share_ids?": _flag,
    "devices": [{"device": _number, "name": _text, "memory_bytes_per_s?": _or_null(_count)}],
    "ranks": [{"pid": _number, "rank": _number}],
    "lacks": [{"what": _text, "remedy": _text}],
    "launches": _count,
    "hierarchy?": {"by": _hierarchy, "asked": _hierarchy},
    "folder?": _text,
    "own_modules?": _or_null(_count),
    "modules_differ?": {"itself": _count, "others": _count},
}
_WHOLE = {"tracekit": _text, "files?": _files}
_SINGLE = {**_WHOLE, **_REPORT}
_SEVERAL = {
    **_WHOLE,
    **_COUNTED,
    "reports": [{"name": _text, "first_id": _count, **_REPORT}],
    "left_out": [{"name": _text, "problem": _text}],
}


def _flaw(value: object, shape: Any, where: str) -> str | None:  # noqa: ANN401 - predicates, lists and objects of such
    """Where a value does not have its shape; None if it has."""
    if isinstance(shape, dict) and isinstance(value, dict):
        return next(filter(None, _flaws_of_members(value, shape, where)), None)
    if isinstance(shape, list) and isinstance(value, list):
        flaws = (_flaw(entry, shape[0], f"{where}[{index}]") for index, entry in enumerate(value))
        return next(filter(None, flaws), None)
    fits = not isinstance(shape, dict | list) and shape(value)
    return None if fits else f"{where} is {reprlib.repr(value)}"


def _flaws_of_members(value: dict[str, Any], shape: dict[str, Any], where: str) -> Iterator[str | None]:
    for name, member_shape in shape.items():
        member = name.rstrip("?")
        path = f"{where}.{member}" if where else member
        if member in value:
            yield _flaw(value[member], member_shape, path)
        elif member == name:
            yield f"{path} is missing"
