"""Why something at a URL cannot be reached, on one line: each library of fsspec has errors of its own."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The extra that brings what a scheme needs.
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "azure"),
    **dict.fromkeys(("ssh", "sftp"), "ssh"),
    **dict.fromkeys(("http", "https"), "http"),
}
#: Packages whose errors are about the way to the place or its owner's rules.
_LIBRARIES = frozenset(
    {
        "aiobotocore",
        "aiohttp",
        "asyncio",
        "azure",
        "botocore",
        "fsspec",
        "gcsfs",
        "google",
        "paramiko",
        "requests",
        "s3fs",
        "socket",
        "urllib3",
    }
)
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "DefaultCredentialsError",
        "CredentialUnavailableError",
        "ClientAuthenticationError",
    }
)
_AGAIN = "check the network and the address, then run the command again"


class _Failure(NamedTuple):
    problem: str
    remedy: str


def extra_missing(url: str, scheme: str) -> str:
    """What to install for URLs of a scheme."""
    extra = _EXTRAS.get(scheme)
    if extra is None:
        return f"{url}: needs universal-pathlib and what fsspec needs for {scheme}://; install both"
    return f"{url}: needs the extra {extra}; install it with: pip install 'nsight-tracekit[{extra}]'"


@contextmanager
def reachable(place: object, error: type[TracekitError]) -> Iterator[None]:
    """Turns what goes wrong on the way to a URL into an error of the kind ``error``, which takes three texts."""
    try:
        yield
    except TracekitError:
        raise
    except Exception as raised:
        failure = _failure(raised)
        if failure is None:
            raise
        raise error(place, *failure) from None


def _failure(raised: Exception) -> _Failure | None:
    """What is told of an error; None if it is not about a place."""
    name, library = type(raised).__name__, type(raised).__module__.partition(".")[0]
    reason = " ".join(str(raised).split()) or name
    if name in _NO_CREDENTIALS:
        remedy = "sign in as for other programs of this store, for example by the variables AWS_ACCESS_KEY_ID and so on"
        return _Failure(f"no valid credentials were found ({reason})", remedy)
    if isinstance(raised, PermissionError):
        return _Failure(f"access is denied ({reason})", "check the credentials and what they allow")
    if isinstance(raised, FileNotFoundError) and isinstance(raised.__cause__, OSError):
        return _failure(raised.__cause__)  # over HTTP, also where nobody answers
    if isinstance(raised, FileNotFoundError):
        if "bucket" in reason.casefold():
            return _Failure("its bucket does not exist", "check the name of the bucket, and the endpoint")
        return _Failure("does not exist", "check the path")
    if isinstance(raised, OSError) and raised.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _Failure(f"does not fit on this machine ({reason})", "free some space, or set TMPDIR to another folder")
    if isinstance(raised, OSError | TimeoutError | EOFError) or library in _LIBRARIES:
        return _Failure(f"cannot be reached ({reason})", _AGAIN)
    return None
