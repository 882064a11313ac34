"""``manifest.json``: what a dataset is of, and the ids by which its tables are told from those of another parse.

Every file of a table carries an id, a digest of its rows; the manifest lists these ids. Its own id is a digest of all
that it says but ``source``, which may be corrected by hand: a clock that was wrong, for one.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import reprlib
from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.errors import DatasetError
from tracekit.recording.provenance import LATEST_UTC_NS
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

#: Bumped when a column is renamed or changes its type.
FORMAT_VERSION = 1
FORMAT = "tracekit dataset"
MANIFEST = "manifest.json"
#: The manifest's own id, and those of the files of tables. Datasets of tracekit 0.1.0 have neither.
ID, TABLE_IDS = "id", "table_ids"

_SOURCE = "source"
_ID_BYTES = 16
#: More than any sum of what reports hold.
_MOST = 1 << 80
_AGAIN = "parse the report again"


def new_id(start: bytes) -> hashlib.blake2b:
    """A digest that becomes an id."""
    return hashlib.blake2b(start, digest_size=_ID_BYTES)


def write(folder: Path, said: Mapping[str, object]) -> None:
    """Writes what is said of a dataset; with it, the dataset is whole."""
    whole = {"format": FORMAT, "format_version": FORMAT_VERSION, **said}
    as_read = json.loads(json.dumps(whole))
    text = json.dumps({**as_read, ID: _id_of(as_read)}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(f"{text}\n", "utf-8")


def is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of a dataset, of any version."""
    try:
        return bool(json.loads(path.read_text("utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a dataset.

    Raises:
        DatasetError: If the folder is no dataset, of another format version, or its manifest is not as it was written.
    """
    said = _json(folder)
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise DatasetError(folder, "its manifest.json is not tracekit's", "make a dataset with tracekit parse")
    if said.get("format_version") != FORMAT_VERSION:
        found = reprlib.repr(said.get("format_version"))
        problem = f"has format version {found}, this tracekit reads {FORMAT_VERSION}"
        raise DatasetError(folder, problem, _AGAIN)
    if flaw := _flaw(said, _SEVERAL if "reports" in said else _SINGLE, ""):
        raise DatasetError(folder, f"its manifest.json is damaged ({flaw})", _AGAIN)
    if said.get("reports") == []:
        raise DatasetError(folder, "its manifest.json is damaged (reports is [])", _AGAIN)
    if not _as_written(said):
        problem = "its manifest.json was changed after it was written"
        raise DatasetError(folder, problem, f"undo that, or {_AGAIN}")
    return said


def _as_written(said: dict[str, Any]) -> bool:
    """Whether its id is right, or it is of a time that knew none."""
    if ID not in said and all(TABLE_IDS not in one for one in (said, *said.get("reports", ()))):
        return True
    try:
        return bool(said.get(ID) == _id_of(said))
    except RecursionError:
        return False


def _json(folder: Path) -> object:
    path = folder / MANIFEST
    try:
        return json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except NotADirectoryError:
        problem = "is a file, and no dataset"
        remedy = f"tracekit parse {folder} makes one of a report"
    except FileNotFoundError:
        problem, remedy = _missing(folder)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no JSON: {error}"
        problem, remedy = f"its manifest cannot be read ({reason})", _AGAIN
    raise DatasetError(folder, problem, remedy)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _missing(folder: Path) -> tuple[str, str]:
    """Why there is no manifest, and what to do."""
    if folder.exists():
        return "is no dataset: it has no manifest.json", "make one with tracekit parse"
    place = folder.resolve()
    if aside := sorted(place.parent.glob(f".{glob.escape(place.name)}.old-*")):
        problem = "is being replaced by a parse, or was when that was killed"
        return problem, f"try again in a moment; if no parse runs, rename {aside[0]}, which it was"
    return "is no dataset: there is no such folder", "make one with tracekit parse"


def _id_of(said: dict[str, Any]) -> str:
    """A digest of all that is said but the id itself and what describes sources."""
    kept = _without_source(said)
    if "reports" in kept:
        kept["reports"] = [_without_source(entry) for entry in kept["reports"]]
    return new_id(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _without_source(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name not in {ID, _SOURCE}}


def _text(value: object) -> bool:
    """Texts that can be written anywhere: JSON can spell halves of letters, which nothing else can."""
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


def _or_null(shape: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or shape(value)


#: What is relied on. A shape is a predicate, the shape of each entry of a list, or those of an object's members, whose
#: name ends in ``?`` if it may lack.
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
    },
    "processes": [{"pid": _number, "name": _or_null(_text)}],
    "devices": [{"device": _number, "name": _text, "memory_bytes_per_s?": _or_null(_count)}],
    "ranks": [{"pid": _number, "rank": _number}],
    "lacks": [{"what": _text, "remedy": _text}],
    "launches": _count,
}
_SINGLE = {"tracekit": _text, **_REPORT}
_SEVERAL = {
    "tracekit": _text,
    **_COUNTED,
    "reports": [{"name": _text, "first_id": _count, **_REPORT}],
    "left_out": [{"name": _text, "problem": _text}],
}


def _flaw(value: object, shape: Any, where: str) -> str | None:  # noqa: ANN401 - predicates, lists and objects of such
    """What in a value is not of its shape; None if nothing is."""
    if isinstance(shape, dict) and isinstance(value, dict):
        return next(filter(None, _flaws_of_members(value, shape, where)), None)
    if isinstance(shape, list) and isinstance(value, list):
        entries = (_flaw(one, shape[0], f"{where}[{at}]") for at, one in enumerate(value))
        return next(filter(None, entries), None)
    fits = not isinstance(shape, dict | list) and shape(value)
    return None if fits else f"{where} is {reprlib.repr(value)}"


def _flaws_of_members(value: dict[str, Any], shape: dict[str, Any], where: str) -> Iterator[str | None]:
    for name, its in shape.items():
        member = name.rstrip("?")
        path = f"{where}.{member}" if where else member
        if member in value:
            yield _flaw(value[member], its, path)
        elif member == name:
            yield f"{path} is missing"
