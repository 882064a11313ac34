"""Which fields a manifest has, and of what kind: a dataset may come from anybody, and readers rely on them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple, get_type_hints

from typing_extensions import TypeIs

from tracekit.files import is_name
from tracekit.recording.provenance import LATEST_UTC_NS, Gpu, Source

#: What a field is: a type or a union of some, a list of one kind, or an object.
_Kind = Any


class _Object(NamedTuple):
    """An object: fields that it has, and that it may have; ``others`` is the kind of all else, if that matters."""

    fields: Mapping[str, _Kind]
    optional: Mapping[str, _Kind] = {}
    others: _Kind = object


_TEXT = str | None
_SOURCE = _Object(get_type_hints(Source))
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
    "source": _SOURCE,
    "processes": [_Object({"pid": int, "name": _TEXT})],
    "processes_share_ids": bool,
    "devices": [_Object({"device": int, **get_type_hints(Gpu)})],
    "ranks": [_Object({"pid": int, "rank": int, "source": str})],
    "missing": [_Object({"what": str, "remedy": str})],
    "length_ns": int,
    "launches": int,
    "graph_captures": [_SOURCE],
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


def flaw_of(fields: Mapping[str, Any]) -> str | None:
    """The first field that is absent, or not what it should be; None if there is none."""
    several = "reports" in fields
    if flaw := _flaw(fields, _SEVERAL if several else _ONE, ""):
        return flaw
    entries = fields["reports"] if several else [fields]
    starts = [start for entry in entries if (start := entry["source"]["started_utc_ns"]) is not None]
    wrong = next((f"started_utc_ns is {start}" for start in starts if not 0 <= start < LATEST_UTC_NS), None)
    return wrong if entries else "reports is []"


def _flaw(value: object, kind: _Kind, place: str) -> str | None:
    if isinstance(kind, _Object):
        return _flaw_of_object(value, kind, place) if _is_object(value) else _wrong(place, value)
    if isinstance(kind, list):
        items = enumerate(value) if isinstance(value, list) else None
        if items is None:
            return _wrong(place, value)
        return next(filter(None, (_flaw(item, kind[0], f"{place}[{at}]") for at, item in items)), None)
    return None if isinstance(value, kind) and _is_bounded(value) else _wrong(place, value)


def _flaw_of_object(value: Mapping[str, object], kind: _Object, place: str) -> str | None:
    known = {**kind.fields, **kind.optional}
    if absent := next((name for name in kind.fields if name not in value), None):
        return f"it has no {place}.{absent}".replace(" .", " ")
    inside = (_flaw(item, known.get(name, kind.others), f"{place}.{name}".lstrip(".")) for name, item in value.items())
    return next(filter(None, inside), None)


def _is_object(value: object) -> TypeIs[Mapping[str, object]]:
    return isinstance(value, dict)


def _is_bounded(value: object) -> bool:
    """Whether a number fits into 64 bits, and a text can be written and be part of a path."""
    return is_name(value) if isinstance(value, str) else not isinstance(value, int) or abs(value) < 1 << 63


def _wrong(place: str, value: object) -> str:
    return f"{place} is {reprlib.repr(value)}"
