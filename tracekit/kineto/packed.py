"""JSON traces, plain or packed by gzip, read in pieces; what unpacks to far more than its size is refused."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import ReportError

#: No event and nothing besides the events is larger.
MOST_BYTES = 64 << 20

#: What is reported of a file that cannot be unpacked, and what to do about it.
DAMAGED, RECORD_AGAIN = "its gzip compression is cut off or damaged", "copy or record it again"
#: The remedy for what is no trace, or not a whole one.
EXPECTED = "expected a trace of torch.profiler, as export_chrome_trace writes it"

#: Bytes that may stand before JSON: a mark of UTF-8, and blanks.
BLANK = b"\xef\xbb\xbf \t\r\n"
_GZIP = b"\x1f\x8b"
_PIECE_BYTES, _PACKED_BYTES = 2 << 20, 1 << 20
#: Real traces are 5 to 40 times larger than their gzip file. Beyond this, size is no trace but an attack.
_MOST_RATIO, _SURELY_HARMLESS = 200, 128 << 20


class Chunks:
    """The unpacked pieces of a file; one whose compression is cut off ends where it is."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        packed = raw.read(len(_GZIP)) == _GZIP
        raw.seek(0)
        self.bytes = 0
        self._path, self._raw = path, raw
        self._read = partial(next, _members(raw), b"") if packed else partial(raw.read, _PIECE_BYTES)

    @property
    def position(self) -> int:
        """Where the next piece begins in the file as it is on disk."""
        return self._raw.tell()

    def next(self) -> bytes:
        """The next piece; empty at the end."""
        piece = self._read()
        self.bytes += len(piece)
        if self.bytes > _SURELY_HARMLESS and self.bytes > _MOST_RATIO * self.position:
            raise ReportError(self._path, f"unpacks to more than {_MOST_RATIO} times its size", EXPECTED)
        return piece


@contextmanager
def chunks_of(path: Path) -> Iterator[Chunks]:
    """Opens a trace."""
    try:
        with path.open("rb") as raw:
            yield Chunks(path, raw)
    except zlib.error:
        raise ReportError(path, DAMAGED, RECORD_AGAIN) from None


def _members(raw: BinaryIO) -> Iterator[bytes]:
    rest = raw.read(_PACKED_BYTES)
    while rest:
        member = zlib.decompressobj(wbits=31)
        while rest and not member.eof:
            if piece := member.decompress(rest, _PIECE_BYTES):
                yield piece
            rest = member.unconsumed_tail or member.unused_data or raw.read(_PACKED_BYTES)
        if piece := member.flush():
            yield piece
        rest = rest.lstrip(b"\0")


def beginning(head: bytes, most: int) -> bytes | None:
    """What a file begins with: at most ``most`` unpacked bytes, or ``head`` if it is not packed.

    None if it is packed, and damaged or cut off right at its beginning.
    """
    if not head.startswith(_GZIP):
        return head
    content, rest, whole = b"", head, False
    try:
        while rest and not content:
            unpacking = zlib.decompressobj(wbits=31)
            content = unpacking.decompress(rest, most)
            rest, whole = unpacking.unused_data.lstrip(b"\0"), unpacking.eof
    except zlib.error:
        return None
    return content if content or whole else None
