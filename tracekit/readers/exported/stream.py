"""Reads an export piece by piece: it has one event a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tracekit.errors import ReportError
from tracekit.readers.exported.events import Event, Other
from tracekit.readers.packed import MOST_BYTES, pieces_of
from tracekit.version import TIMELINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.readers.packed import Pieces

#: What to do about a file that is not as it was written.
REMEDY = "export the dataset again with tracekit export"

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

    def pieces(self) -> Iterator[Piece]:
        """The events, piece by piece.

        Raises:
            ReportError: If the file is not as it was written.
        """
        try:
            with pieces_of(self._path, damaged=REMEDY, too_large=REMEDY) as file:
                yield from self._pieces(file)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"was changed after tracekit export wrote it ({str(error)[:100]})"
            raise ReportError(self._path, problem, REMEDY) from None

    def _pieces(self, file: Pieces) -> Iterator[Piece]:
        head, begins, rest = file.next().partition(_EVENTS)
        if not begins:
            raise ReportError(self._path, "has no list traceEvents where tracekit export writes it", REMEDY)
        other = _DECODE_OTHER(head.rstrip(b",\n") + b"}").get("otherData")
        self.other = other if isinstance(other, Other) else Other()
        if self.other.timeline != TIMELINE:
            raise ReportError(self._path, "is a timeline of another tracekit, whose events hold other things", REMEDY)
        while more := file.next():
            text = rest + more
            lines, end, rest = text.rpartition(b",\n")
            if end:
                yield Piece(_DECODE_EVENTS(b"[" + lines + b"]"), file.position)
            elif len(rest) > MOST_BYTES:
                raise ReportError(self._path, f"has an event of more than {MOST_BYTES >> 20} MiB", REMEDY)
        yield Piece(self._last(rest), file.position)

    def _last(self, rest: bytes) -> list[Event]:
        text, end, _ = rest.rpartition(b"]}")
        if not end:
            raise ReportError(self._path, "is cut off in the middle", REMEDY)
        return _DECODE_EVENTS(b"[" + text + b"]")
