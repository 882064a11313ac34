"""Reads an export piece by piece: it has one event a line."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from tracekit.errors import ReportError
from tracekit.readers.exported.events import Event, Other
from tracekit.version import TIMELINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

GZIP = b"\x1f\x8b"
#: How an export begins.
BEGINNING = b'{"displayTimeUnit": "ns", "otherData": {"tracekit": '
#: What to do about a file that is not as it was written.
REMEDY = "export the dataset again with tracekit export"

_PIECE_BYTES = 8 << 20
_MOST_BYTES = 64 << 20
#: Exports are 5 to 30 times larger than their gzip file. Beyond this, size is no timeline but an attack.
_MOST_RATIO, _SURELY_HARMLESS = 200, 128 << 20
_EVENTS = b'"traceEvents": [\n'
_DECODE_EVENTS = msgspec.json.Decoder(list[Event]).decode
_DECODE_OTHER = msgspec.json.Decoder(dict[str, Other | str]).decode


class Piece(NamedTuple):
    """Some events, and where they end in the file as it is on disk."""

    events: list[Event]
    position: int


class Export:
    """An export on disk. ``other`` is known when the first piece has been read."""

    def __init__(self, path: Path) -> None:
        self.other = Other()
        self._path = path
        self._bytes = 0

    def pieces(self) -> Iterator[Piece]:
        """The events, piece by piece.

        Raises:
            ReportError: If the file is not as it was written.
        """
        try:
            with self._path.open("rb") as raw:
                packed = raw.read(len(GZIP)) == GZIP
                raw.seek(0)
                yield from self._pieces(cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw, raw)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ReportError(self._path, "its gzip compression is cut off or damaged", REMEDY) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"was changed after tracekit export wrote it ({str(error)[:100]})"
            raise ReportError(self._path, problem, REMEDY) from None

    def _pieces(self, file: BinaryIO, raw: BinaryIO) -> Iterator[Piece]:
        head, begins, rest = self._more(file, raw).partition(_EVENTS)
        if not begins:
            raise ReportError(self._path, "has no list traceEvents where tracekit export writes it", REMEDY)
        other = _DECODE_OTHER(head.rstrip(b",\n") + b"}").get("otherData")
        self.other = other if isinstance(other, Other) else Other()
        if self.other.timeline != TIMELINE:
            raise ReportError(self._path, "is a timeline of another tracekit, whose events hold other things", REMEDY)
        while more := self._more(file, raw):
            text = rest + more
            lines, end, rest = text.rpartition(b",\n")
            if end:
                yield Piece(_DECODE_EVENTS(b"[" + lines + b"]"), raw.tell())
            elif len(rest) > _MOST_BYTES:
                raise ReportError(self._path, f"has an event of more than {_MOST_BYTES >> 20} MiB", REMEDY)
        yield Piece(self._last(rest), raw.tell())

    def _last(self, rest: bytes) -> list[Event]:
        text, end, _ = rest.rpartition(b"]}")
        if not end:
            raise ReportError(self._path, "is cut off in the middle", REMEDY)
        return _DECODE_EVENTS(b"[" + text + b"]")

    def _more(self, file: BinaryIO, raw: BinaryIO) -> bytes:
        piece = file.read(_PIECE_BYTES)
        self._bytes += len(piece)
        if self._bytes > _SURELY_HARMLESS and self._bytes > _MOST_RATIO * raw.tell():
            raise ReportError(self._path, f"unpacks to more than {_MOST_RATIO} times its size", REMEDY)
        return piece
