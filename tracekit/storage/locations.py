"""Paths and URLs: what a user wrote becomes a path of this machine or one of ``universal_pathlib``.

Both have the same methods, so that code which only reads need not know which it has.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from tracekit.errors import UsageError
from tracekit.storage.failures import extra_missing, reachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import TypeIs
    from upath import UPath

    from tracekit.errors import TracekitError

    #: A place on this machine or at a URL.
    Location: TypeAlias = Path | UPath
    #: What users write for it.
    Given: TypeAlias = str | os.PathLike[str] | UPath

_SCHEME = "://"


def is_url(text: object) -> bool:
    """Whether it is a URL of any kind, rather than a path of this machine."""
    return isinstance(text, str) and _SCHEME in text


def location(given: Given, options: Mapping[str, Any] | None = None) -> Location:
    """The place that a path or a URL names, with options of its file system; ``file://`` is one of this machine.

    Raises:
        UsageError: If what is needed for URLs of this kind is not installed, or nothing knows them.
    """
    if not isinstance(given, str):
        return given if not isinstance(given, os.PathLike) or isinstance(given, Path) else Path(given)
    if not is_url(given):
        return Path(given)
    scheme = given.partition(_SCHEME)[0]
    if scheme == "file":
        return Path(unquote(urlsplit(given).path))
    try:
        from upath import UPath  # noqa: PLC0415 - brought by extras

        place: UPath = UPath(given, **(options or {}))
        place.fs  # noqa: B018 - looks for the library of this kind of URL
    except ImportError:
        raise UsageError(extra_missing(given, scheme)) from None
    except ValueError:
        raise UsageError(f"{given}: fsspec does not know {scheme}://; expected a URL such as s3://…") from None
    return place


def is_remote(place: Location) -> TypeIs[UPath]:
    """Whether it is not on this machine."""
    return not isinstance(place, Path)


def expanded(given: Iterable[Given], error: type[TracekitError]) -> list[Location]:
    """The places that paths, URLs and patterns of such name, those of a pattern sorted.

    Raises:
        TracekitError: Of the kind ``error``, if a pattern matches nothing or its place cannot be reached.
    """
    places: list[Location] = []
    for one in given:
        text = os.fspath(one) if isinstance(one, str | os.PathLike) else str(one)
        if not glob.has_magic(text) or (not is_url(text) and os.path.lexists(text)):
            places.append(location(one))
            continue
        matches = _matches(text, error)
        if not matches:
            raise error(text, "matches nothing", "check the pattern")
        places += matches
    return places


def _matches(pattern: str, error: type[TracekitError]) -> list[Location]:
    above = location(pattern)
    if isinstance(above, Path):
        base = Path(above.anchor)
        return sorted(base.glob(str(above.relative_to(base))))
    with reachable(above, error):
        return [location(above.fs.unstrip_protocol(path)) for path in sorted(above.fs.glob(above.path))]


def text_of(place: Location) -> str:
    """The text of a small file, as it is now: what libraries remember of folders at URLs may be old."""
    if isinstance(place, Path):
        return place.read_text("utf-8")
    content: bytes = place.fs.cat_file(place.path)
    return content.decode("utf-8")


def listed(place: UPath) -> None:
    """Lets a file system remember the sizes of all files below a URL: one request instead of one for each file."""
    if not place.protocol.startswith("http"):  # which has no lists that one can trust
        place.fs.find(place.path)
