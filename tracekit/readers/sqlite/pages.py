"""Columns of a SQLite table straight out of the pages of its file, thousands of rows at a time with NumPy.

Through SQLite's interface a value costs some 50 ns, whichever library asks; decoding the pages costs some 10 ns, less
than SQLite needs to sum the columns. Only plain tables are read this way: whatever is damaged, unusual or merely
doubtful raises :class:`NotPlain`, and SQLite itself is asked. The format is fixed and documented; numbers in comments
are sections of https://sqlite.org/fileformat2.html.
"""

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Bytes, Flags, Ints
from tracekit.readers.source import ENCODED_BLOB, ENCODED_TEXT

LEAF = 13
_INTERIOR = 5
_HEADER_BYTES = 100
_DEEPEST = 20


class NotPlain(Exception):  # noqa: N818
    """The table holds something that only SQLite itself should read."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of an open file, numbered from 0.

    Attributes:
        turn: Held while the file is read, so that threads can share it.
    """

    file: FileIO
    turn: threading.Lock
    count: int
    size: int
    usable: int
    utf8: bool

    def load(self, pages: Ints) -> Bytes:
        """Some pages end to end, and eight more bytes, since eight can then be taken from anywhere."""
        data = bytearray(pages.size * self.size + 8)
        view = memoryview(data)
        edges = np.flatnonzero(np.diff(pages) != 1) + 1
        for begin, end in itertools.pairwise([0, *edges.tolist(), pages.size]):
            space = view[begin * self.size : end * self.size]
            with self.turn:
                self.file.seek(int(pages[begin]) * self.size)
                read = self.file.readinto(space)
            if read != len(space):
                raise NotPlain
        return np.frombuffer(data, dtype=np.uint8)


@contextmanager
def open_pages(path: Path) -> Iterator[Pages]:
    """Opens a file."""
    with path.open("rb", buffering=0) as file:
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise NotPlain
        size = int.from_bytes(header[16:18], "big")
        size = 65_536 if size == 1 else size
        total = os.fstat(file.fileno()).st_size
        if size < 512 or size & (size - 1) or total % size or max(header[18:20]) > 2:  # noqa: PLR2004
            raise NotPlain
        utf8 = int.from_bytes(header[56:60], "big") == 1
        yield Pages(file, threading.Lock(), total // size, size, size - header[20], utf8)


def leaves(pages: Pages, root: int) -> Ints:
    """The leaf pages of a table in the order of its rows."""
    level = np.array([root - 1], dtype=np.int64)
    visited = 0
    for _ in range(_DEEPEST):
        visited += level.size
        inside = level.size and int(level.min()) >= 1 and int(level.max()) < pages.count
        if not inside or visited > pages.count:
            raise NotPlain
        if pages.load(level[:1])[0] == LEAF:
            return level  # leaves are all at one depth; each is checked when it is decoded
        data = pages.load(level)[:-8].reshape(level.size, pages.size)
        if not bool((data[:, 0] == _INTERIOR).all()):
            raise NotPlain
        level = np.concatenate([_children(page) for page in data])
    raise NotPlain


def _children(page: Bytes) -> Ints:
    """The pages below an interior page (1.6): a left child in each cell, and the one at the far right."""
    cells = int.from_bytes(page[3:5].tobytes(), "big")
    pointers = page[12 : 12 + 2 * cells].view(">u2").astype(np.int64)
    if pointers.size < cells or (cells and int(pointers.max()) + 4 > page.size):
        raise NotPlain
    left = page[pointers[:, None] + np.arange(4)].reshape(-1, 4).copy().view(">u4").ravel()
    right = page[8:12].copy().view(">u4")
    return np.concatenate((left, right)).astype(np.int64) - 1


#: Pages decoded at once: what is needed on the way fits into the cache.
_CHUNK_PAGES = 256
_TWO_BYTES = 0x80
#: Serial types (2.1): NULL; integers of 1, 2, 3, 4, 6, 8 bytes; a float; the constants 0 and 1; from 13 on, odd
#: numbers are texts, and from 12 on, even ones are bytes.
_NULL, _FLOAT, _ZERO, _ONE, _FIRST_BLOB, _FIRST_TEXT = 0, 7, 8, 9, 12, 13
_BYTES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((n - 12) // 2 for n in range(12, 256))])
_SHIFT = np.array([0, 56, 48, 40, 32, 16, 0, 0, 0, 0])
_INLINE_BYTES = 12
_SPILL = 35


@dataclass(frozen=True, slots=True)
class Asked:
    """Positions of columns in a table: integers, texts, bytes, and others that are only checked for content."""

    integers: tuple[int, ...]
    texts: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    blobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of some rows; integers are as narrow as their values allow, and None if they are all null."""

    rowid: Ints
    integers: list[pa.ChunkedArray | None]
    texts: list[pa.ChunkedArray | None]
    others: list[bool]
    blobs: list[pa.ChunkedArray | None]


def columns(pages: Pages, leaf: Ints, asked: Asked) -> Columns:
    """Decodes the columns at the asked positions, of the rows on some leaf pages."""
    parts = [_chunk(pages, leaf[at : at + _CHUNK_PAGES], asked) for at in range(0, leaf.size, _CHUNK_PAGES)]
    rowid = np.concatenate([part.rowid for part in parts])
    if rowid.size > 1 and not bool((rowid[1:] > rowid[:-1]).all()):
        raise NotPlain
    integers = [_joined([part.integers[at] for part in parts], parts) for at in range(len(asked.integers))]
    texts = [_joined([part.texts[at] for part in parts], parts) for at in range(len(asked.texts))]
    others = [any(part.others[at] for part in parts) for at in range(len(asked.others))]
    blobs = [_joined([part.blobs[at] for part in parts], parts) for at in range(len(asked.blobs))]
    return Columns(rowid, integers, texts, others, blobs)


def _joined(pieces: list[pa.ChunkedArray | None], parts: list[Columns]) -> pa.ChunkedArray | None:
    """A column, all parts end to end; nothing is copied but integers that are narrower than others."""
    types = [piece.type for piece in pieces if piece is not None]
    if not types:
        return None
    widest = max(types, key=lambda type_: type_.bit_width if pa.types.is_integer(type_) else 0)
    chunks: list[Any] = []
    for piece, part in zip(pieces, parts, strict=True):
        chunks += [pa.nulls(part.rowid.size, widest)] if piece is None else piece.cast(widest).chunks
    return pa.chunked_array(chunks, type=widest)


def _chunk(pages: Pages, leaf: Ints, asked: Asked) -> Columns:
    data = pages.load(leaf)
    if not bool((data[: -8 : pages.size] == LEAF).all()) or (asked.texts and not pages.utf8):
        raise NotPlain
    cells = _cells(data, leaf.size, pages)
    try:
        return _decoded(data, cells, pages.usable - _SPILL, asked)
    except IndexError:
        raise NotPlain from None


def _cells(data: Bytes, count: int, pages: Pages) -> tuple[Ints, Ints]:
    page = np.arange(count, dtype=np.int64) * pages.size
    cells = _short(data, page + 3)
    if int(cells.max(initial=0)) * 2 + 8 > pages.usable:
        raise NotPlain
    within = np.arange(int(cells.sum()), dtype=np.int64) - np.repeat(np.cumsum(cells) - cells, cells)
    pointer = _short(data, np.repeat(page + 8, cells) + 2 * within)
    if bool((pointer < 8 + 2 * np.repeat(cells, cells)).any()) or bool((pointer >= pages.usable).any()):
        raise NotPlain
    base = np.repeat(page, cells)
    return base + pointer, base + pages.usable


def _short(data: Bytes, at: Ints) -> Ints:
    return data[at].astype(np.int64) << 8 | data[at + 1]


def _decoded(data: Bytes, cells: tuple[Ints, Ints], longest: int, asked: Asked) -> Columns:
    """The rows in some cells: payload size, rowid, then the record (2.1): sizes of header and columns, then these."""
    cell, edge = cells
    payload, at = _varint(data, cell)
    rowid, start = _varint(data, at)
    header, at = _varint(data, start)
    end, body = start + payload, start + header
    # Of a row longer than U - 35 the rest is on another page (1.6).
    if bool((end > edge).any()) or int(payload.max(initial=0)) > longest:
        raise NotPlain
    decoded: dict[int, Any] = {}
    # Steps that are the same in all rows: views that begin later cost nothing, other places would be added up.
    ahead = past = 0
    for position in range(max((*asked.integers, *asked.texts, *asked.others, *asked.blobs), default=-1) + 1):
        kind, following = _serial_type(data[ahead:], at)
        ahead, at = (ahead + 1, at) if following is None else (ahead, following)
        length = _length(kind)
        if position in asked.integers:
            decoded[position] = _integer(data[past:], kind, body)
        elif position in asked.texts:
            decoded[position] = _values(data[past:], kind, (length, body), ENCODED_TEXT)
        elif position in asked.blobs:
            decoded[position] = _values(data[past:], kind, (length, body), ENCODED_BLOB)
        elif position in asked.others:
            decoded[position] = bool(kind.any())
        past, body = (past + length, body) if isinstance(length, int) else (past, body + length)
    # The header must reach to the last column asked for, and the columns must lie within the row.
    if bool((at > start + header - ahead).any()) or bool((body > end - past).any()):
        raise NotPlain
    integers, texts, others, blobs = (
        [decoded[position] for position in positions]
        for positions in (asked.integers, asked.texts, asked.others, asked.blobs)
    )
    return Columns(rowid, integers, texts, others, blobs)


def _integer(data: Bytes, kind: Bytes | Ints, body: Ints) -> pa.ChunkedArray | None:
    values, null = _numbers(data, kind, body)
    return None if values is None else pa.chunked_array([pa.array(values, mask=null)])


def _numbers(data: Bytes, kind: Bytes | Ints, body: Ints) -> tuple[Ints | None, Flags | None]:
    least, most = int(kind.min(initial=_ONE)), int(kind.max(initial=_NULL))
    if most == _NULL:
        return None, None
    if most > _ONE or (most >= _FLOAT and bool((kind == _FLOAT).any())):
        raise NotPlain
    if least >= _ZERO:
        return (kind == _ONE).astype(np.int8), None
    word = _word(kind, most)
    value = np.ndarray((data.size - 7,), dtype=word, buffer=data, strides=(1,))[body]
    if sys.byteorder == "little" and value.itemsize > 1:
        value.byteswap(inplace=True)
    # Mostly all rows store the column in as many bytes.
    shift = (_SHIFT - (64 - 8 * value.itemsize)).astype(word)
    if least < most or shift[least]:
        value >>= shift[least] if least == most else shift[kind]
    if most >= _ZERO:
        value[kind == _ZERO] = 0
        value[kind == _ONE] = 1
    if least > _NULL:
        return value, None
    null = kind == _NULL
    value[null] = 0
    return value, null


def _word(kind: Bytes | Ints, most: int) -> type[np.signedinteger[Any]]:
    widest = most if most < _ZERO else int(kind[kind < _ZERO].max())
    return (np.int8, np.int8, np.int16, np.int32, np.int32, np.int64, np.int64)[widest]


def _values(
    data: Bytes, kind: Bytes | Ints, place: tuple[Ints | int, Ints], type_: pa.DataType
) -> pa.ChunkedArray | None:
    """Texts or bytes as Arrow's views into the pages, of which distinct ones are then stored once.

    A view is the length and twelve bytes: the text itself if it fits, else its first four bytes, the number of the
    buffer and the place in it (https://arrow.apache.org/docs/format/Columnar.html).
    """
    length, body = np.broadcast_to(place[0], kind.shape), place[1]
    first, view_type = (_FIRST_TEXT, pa.string_view()) if type_ == ENCODED_TEXT else (_FIRST_BLOB, pa.binary_view())
    null = kind == _NULL
    if null.all():
        return None
    of_type = null | ((kind >= first) & (kind & 1 == first & 1))
    if not bool(of_type.all()) or bool((body + length > data.size).any()):
        raise NotPlain
    view = np.zeros((kind.size, 4), dtype="<i4")
    view[:, 0] = length
    short, long = np.flatnonzero(length <= _INLINE_BYTES), np.flatnonzero(length > _INLINE_BYTES)
    within = np.arange(_INLINE_BYTES)
    letters = data[np.minimum(body[short, None] + within, data.size - 1)]
    letters[within >= length[short, None]] = 0
    view[short, 1:] = letters.view("<i4")
    view[long, 1] = data[body[long, None] + within[:4]].view("<i4").ravel()
    view[long, 3] = body[long]
    valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(view), pa.py_buffer(data)]
    views = pa.Array.from_buffers(view_type, kind.size, buffers)
    return pa.chunked_array([views.cast(type_.value_type).dictionary_encode()], type=type_)


def _serial_type(data: Bytes, at: Ints) -> tuple[Bytes | Ints, Ints | None]:
    """Kind of a column, and where the next one's kind stands, unless that is one byte further in all rows."""
    kind = data[at]
    return (kind, None) if int(kind.max(initial=_NULL)) < _TWO_BYTES else _varint(data, at)


def _length(kind: Bytes | Ints) -> Ints | int:
    least, most = int(kind.min(initial=_TWO_BYTES - 1)), int(kind.max(initial=_NULL))
    if most >= _BYTES.size:
        return np.where(kind < _BYTES.size, _BYTES[kind % _BYTES.size], (kind - 12) >> 1)
    return int(_BYTES[most]) if least == most else _BYTES[kind]


def _varint(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Variable-length integers (1.6) and the places behind them; those of nine bytes are left to SQLite."""
    byte = data[at]
    value = (byte & (_TWO_BYTES - 1)).astype(np.int64)
    for length in range(1, 9):
        if int(byte.max(initial=0)) < _TWO_BYTES:
            return value, at + length
        if int(byte.min()) < _TWO_BYTES:
            return _uneven(data, value, at + length, np.flatnonzero(byte >= _TWO_BYTES), 8 - length)
        byte = data[length:][at]
        value = value << 7 | byte & (_TWO_BYTES - 1)
    raise NotPlain


def _uneven(data: Bytes, value: Ints, at: Ints, longer: Ints, most: int) -> tuple[Ints, Ints]:
    """Variable-length integers of which some are longer than what was read of all, by at most so many bytes."""
    for _ in range(most):
        byte = data[at[longer]]
        value[longer] = value[longer] << 7 | byte & (_TWO_BYTES - 1)
        at[longer] += 1
        longer = longer[byte >= _TWO_BYTES]
        if not longer.size:
            return value, at
    raise NotPlain
