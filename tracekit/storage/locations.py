"""Paths and URLs: what a user wrote becomes a path of this machine or one of ``universal_pathlib``.

Both have the same methods, so that code which only reads need not know which it has. What goes wrong on the way to a
URL is reported on one line: each library of fsspec has errors of its own.
"""

from __future__ import annotations

import errno
import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from typing_extensions import TypeIs

from tracekit.errors import TracekitError, UsageError

if TYPE_CHECKING:
    from upath import UPath

#: A place on this machine or at a URL.
Location: TypeAlias = "Path | UPath"
#: What users write for it.
Given: TypeAlias = "str | os.PathLike[str] | UPath"

_SCHEME = "://"
#: How many requests a store gets at a time: each one waits for the network some ten milliseconds.
_AT_ONCE = 16
#: The extra that brings what a scheme needs.
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "azure"),
    **dict.fromkeys(("ssh", "sftp"), "ssh"),
    **dict.fromkeys(("http", "https"), "http"),
}
#: Packages whose errors are about the way to the place or its owner's rules.
_LIBRARIES = {
    *("aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google", "paramiko", "requests"),
    *("s3fs", "socket", "urllib3"),
}
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"),
    *("TokenRetrievalError", "DefaultCredentialsError", "CredentialUnavailableError", "ClientAuthenticationError"),
}

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_url(text: object) -> bool:
    """Whether it is a URL of any kind, rather than a path of this machine."""
    return isinstance(text, str) and _SCHEME in text


def location(given: Given) -> Location:
    """The place that a path or a URL names; ``file://`` is one of this machine.

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

        place: UPath = UPath(given)
        place.fs  # noqa: B018 - looks for the library of this kind of URL
    except ImportError:
        needed = f"needs universal-pathlib and what fsspec needs for {scheme}://; install both"
        if extra := _EXTRAS.get(scheme):
            needed = f"needs the extra {extra}; install it with: pip install 'nsight-tracekit[{extra}]'"
        raise UsageError(f"{given}: {needed}") from None
    except ValueError:
        raise UsageError(f"{given}: fsspec does not know {scheme}://; expected a URL such as s3://…") from None
    return place


def is_remote(place: Location) -> TypeIs[UPath]:
    """Whether it is not on this machine."""
    return not isinstance(place, Path)


def expanded(given: Iterable[Given], error: type[TracekitError]) -> list[Location]:
    """The places that paths, URLs and patterns of such name, those of a pattern sorted."""
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
        try:
            return sorted(base.glob(str(above.relative_to(base))))
        except (ValueError, RecursionError):
            raise error(pattern, "is no pattern: ** stands for folders, between two /", "check the pattern") from None
    with reachable(above, error):
        return [location(above.fs.unstrip_protocol(path)) for path in sorted(above.fs.glob(above.path))]


def text_of(place: Location) -> str:
    """The text of a small file, as it is now: what libraries remember of folders at URLs may be old."""
    if isinstance(place, Path):
        return place.read_text("utf-8")
    content: bytes = place.fs.cat_file(place.path)
    return content.decode("utf-8")


def at_once(place: Location) -> int:
    """How many requests a place may have at once; where each waits for its answer, it need not bear several."""
    return _AT_ONCE if is_remote(place) and getattr(place.fs, "async_impl", False) else 1


def in_order(function: Callable[[Item], Result], items: Iterable[Item], place: Location) -> Iterator[Result]:
    """What a function that asks a place gives for each item, in their order; at a URL, several are asked for ahead.

    The first is requested separately, because often no other is needed.
    """
    waiting = iter(items)
    for item in islice(waiting, 1):
        yield function(item)
    if (count := at_once(place)) == 1:
        yield from map(function, waiting)
        return
    pool = ThreadPoolExecutor(count)
    try:
        ahead = deque(pool.submit(function, item) for item in islice(waiting, count))
        while ahead:
            yield ahead.popleft().result()
            ahead += [pool.submit(function, item) for item in islice(waiting, 1)]
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def reachable(place: object, error: type[TracekitError]) -> Iterator[None]:
    """Turns what goes wrong on the way to a URL into an error of the kind ``error``, which takes three texts."""
    try:
        yield
    except TracekitError:
        raise
    except Exception as raised:
        if (problem_and_remedy := _problem_and_remedy(raised)) is None:
            raise
        raise error(place, *problem_and_remedy) from None


def _problem_and_remedy(raised: Exception) -> tuple[str, str] | None:
    name, library = type(raised).__name__, type(raised).__module__.partition(".")[0]
    reason = " ".join(str(raised).split()) or name
    if name in _NO_CREDENTIALS:
        remedy = "sign in as for other programs of this store, for example by the variables AWS_ACCESS_KEY_ID and so on"
        return f"no valid credentials were found ({reason})", remedy
    if isinstance(raised, PermissionError):
        return f"access is denied ({reason})", "check the credentials and what they allow"
    if isinstance(raised, FileNotFoundError) and isinstance(raised.__cause__, OSError):
        return _problem_and_remedy(raised.__cause__)  # over HTTP, also if no server answers
    if isinstance(raised, FileNotFoundError):
        if "bucket" in reason.casefold():
            return "its bucket does not exist", "check the name of the bucket, and the endpoint"
        return "does not exist", "check the path"
    if isinstance(raised, OSError) and raised.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"does not fit on this machine ({reason})", "free some space, or set TMPDIR to another folder"
    if isinstance(raised, OSError | TimeoutError | EOFError) or library in _LIBRARIES:
        return f"cannot be reached ({reason})", "check the network and the address, then run the command again"
    return None
