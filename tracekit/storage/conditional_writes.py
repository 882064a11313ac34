"""Writes a small file at a URL only if nobody else has written it meanwhile, where the store can be told so.

Stores of objects compare a tag of the file that the writer has seen with that of the file which is there, and refuse,
in one step. Other stores, such as SFTP, know no conditions.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from upath import UPath


class _Store(NamedTuple):
    """How a kind of store is told a condition.

    Attributes:
        field: What it calls a file's tag.
        put: Puts content at a path, if the file there still has a tag, or is still missing if that is None.
    """

    field: str
    put: Callable[[Any, str, bytes, str | None], object]


def tag_of(place: UPath) -> str | None:
    """What tells the file that is at a URL now from all others; None if there is none, or the store has no tags."""
    store = _STORES.get(place.protocol)
    if store is None:
        return None
    place.fs.invalidate_cache()  # which may have the tag of an earlier file
    try:
        tag = place.fs.info(place.path).get(store.field)
    except FileNotFoundError:
        return None
    return None if tag is None else str(tag)


def put_if_unchanged(place: UPath, content: bytes, tag: str | None) -> None:
    """Puts a small file at a URL at once, if the file there is still the one that :func:`tag_of` has seen.

    Where a store cannot be told so, the file is put there in any case.

    Raises:
        Exception: What the library of the store raises, also where another file is there.
    """
    store = _STORES.get(place.protocol)
    if store is not None:
        try:
            store.put(place.fs, place.path, content, tag)
        except OSError as error:
            if error.errno != errno.ENOSYS:  # what speaks S3's language need not know conditions
                raise
        else:
            return
    place.fs.pipe_file(place.path, content)


def _put_to_s3(fs: Any, path: str, content: bytes, tag: str | None) -> None:  # noqa: ANN401 - an optional library's
    fs.pipe_file(path, content, **({"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}))


def _put_to_gcs(fs: Any, path: str, content: bytes, tag: str | None) -> None:  # noqa: ANN401 - as above
    if tag is None:
        fs.pipe_file(path, content, mode="create")
        return
    bucket, key, _ = fs.split_path(path)
    fs.call(  # gcsfs offers no condition but that nothing is there
        "POST",
        f"{fs._location}/upload/storage/v1/b/{quote(bucket)}/o",
        uploadType="media",
        name=key,
        ifGenerationMatch=tag,
        headers={"Content-Type": "application/json"},
        data=content,
    )
    fs.invalidate_cache()


def _put_to_azure(fs: Any, path: str, content: bytes, tag: str | None) -> None:  # noqa: ANN401 - as above
    if tag is None:
        fs.pipe_file(path, content, overwrite=False)
        return
    from azure.core import MatchConditions  # noqa: PLC0415 - brought by an extra

    fs.pipe_file(path, content, overwrite=True, etag=tag, match_condition=MatchConditions.IfNotModified)


_STORES = {
    **dict.fromkeys(("s3", "s3a"), _Store("ETag", _put_to_s3)),
    **dict.fromkeys(("gs", "gcs"), _Store("generation", _put_to_gcs)),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), _Store("etag", _put_to_azure)),
}
