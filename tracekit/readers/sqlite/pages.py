"""Columns of a SQLite table straight out of the pages of its file, thousands of rows at a time with NumPy.

Through SQLite's interface a value costs some 50 ns, whichever library asks; decoding the pages costs 7 ns, less than
SQLite needs to sum the columns. Only plain tables are read this way: whatever is damaged, unusual or merely doubtful
raises :class:`NotPlain`, and SQLite itself is asked. Numbers in comments are sections of
https://sqlite.org/fileformat2.html.

The rows of a table are mostly alike: their columns take the same number of bytes. So the bytes of each row are cut out
as one piece, from a place from which a column is equally far in all rows, and the column is a strided view. Behind a
column that takes more bytes in some rows than in others, rows are cut again.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Bytes, Flags, Ints
from tracekit.readers.source import ENCODED_BLOB, ENCODED_TEXT

_INTERIOR, _LEAF = 5, 13
_HEADER_BYTES = 100
_DEEPEST = 20
#: Bytes behind the last page in memory.
_SLACK = 256
#: Bytes of pages decoded at once: what is needed on the way fits into the cache.
_CHUNK_BYTES = 1 << 21
_TWO_BYTES = 0x80
#: Serial types (2.1): NULL; integers of 1, 2, 3, 4, 6, 8 bytes; a float; the constants 0 and 1; from 13 on, odd
#: numbers are texts, and from 12 on, even ones are bytes.
_NULL, _FLOAT, _ZERO, _ONE, _FIRST_BLOB, _FIRST_TEXT = 0, 7, 8, 9, 12, 13
_BYTES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((n - 12) // 2 for n in range(12, 256))])
#: The integer that each is read into, and by how many bits that is wider.
_WORDS = (np.int8, np.int8, np.int16, np.int32, np.int32, np.int64, np.int64)
_SHIFT = np.array([0, 56, 48, 40, 32, 16, 0, 0, 0, 0])
_NUMBER_BYTES = 8
#: The longest number in a header that is read.
_LONGEST_NUMBER = 8
#: Texts of so many bytes are in Arrow's views themselves.
_INLINE_BYTES = 12
_SPILL = 35

#: A number that is the same in all rows, or that of each row.
_InRows: TypeAlias = int | Ints | Bytes
#: Positions of columns in a table, and what they hold: integers, floats, or texts and bytes with distinct ones once.
ColumnTypes: TypeAlias = Mapping[int, pa.DataType]
#: Columns by their positions: integers are as narrow as their values allow, and those that are all null are None.
Columns: TypeAlias = dict[int, pa.ChunkedArray | None]


class NotPlain(Exception):  # noqa: N818
    """The table holds something that only SQLite itself should read."""


class Pages(NamedTuple):
    """The pages of an open file, numbered from 0."""

    file: FileIO
    total: int
    size: int
    usable: int
    utf8: bool

    def load(self, pages: Ints) -> Bytes:
        """Some pages end to end, and ``_SLACK`` more bytes, since so many can then be taken from anywhere."""
        data = np.empty(pages.size * self.size + _SLACK, dtype=np.uint8)
        data[-_SLACK:] = 0
        view = data.data
        edges = np.flatnonzero(np.diff(pages) != 1) + 1
        for begin, end in itertools.pairwise([0, *edges.tolist(), pages.size]):
            space = view[begin * self.size : end * self.size]
            self.file.seek(int(pages[begin]) * self.size)
            if self.file.readinto(space) != len(space):
                raise NotPlain
        return data


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
        yield Pages(file, total // size, size, size - header[20], utf8)


def leaves(pages: Pages, root: int) -> Ints:
    """The leaf pages of a table in the order of its rows."""
    level = np.array([root - 1], dtype=np.int64)
    visited = 0
    for _ in range(_DEEPEST):
        visited += level.size
        if not level.size or level.min() < 1 or level.max() >= pages.total or visited > pages.total:
            raise NotPlain
        if pages.load(level[:1])[0] == _LEAF:
            return level  # leaves are all at one depth; each is checked when it is decoded
        data = pages.load(level)[:-_SLACK].reshape(level.size, pages.size)
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


def columns(pages: Pages, leaf: Ints, asked: ColumnTypes) -> tuple[Ints, Columns]:
    """The numbers of the rows on some leaf pages, and the columns that are asked for."""
    at_once = max(1, _CHUNK_BYTES // pages.size)
    parts = [_chunk(pages, leaf[at : at + at_once], asked) for at in range(0, leaf.size, at_once)]
    rowid = np.concatenate([part for part, _ in parts])
    if not bool((rowid[1:] > rowid[:-1]).all()):
        raise NotPlain
    return rowid, {position: _joined(position, parts) for position in asked}


def _joined(position: int, parts: list[tuple[Ints, Columns]]) -> pa.ChunkedArray | None:
    """A column, all parts end to end; only integers that are narrower than others are copied."""
    types = [piece.type for _, found in parts if (piece := found[position]) is not None]
    if not types:
        return None
    widest = max(types, key=lambda type_: type_.bit_width if pa.types.is_integer(type_) else 0)
    chunks: list[Any] = []
    for rowid, found in parts:
        chunks += [pa.nulls(rowid.size, widest)] if (piece := found[position]) is None else piece.cast(widest).chunks
    return pa.chunked_array(chunks, type=widest)


def _chunk(pages: Pages, leaf: Ints, asked: ColumnTypes) -> tuple[Ints, Columns]:
    data = pages.load(leaf)
    if not (data[: -_SLACK : pages.size] == _LEAF).all() or (ENCODED_TEXT in asked.values() and not pages.utf8):
        raise NotPlain
    cell, edge = _cells(data, leaf.size, pages)
    if not cell.size:
        return cell, dict.fromkeys(asked)
    try:
        return _decoded(data, cell, edge, pages.usable - _SPILL, asked)
    except IndexError:
        raise NotPlain from None


def _cells(data: Bytes, count: int, pages: Pages) -> tuple[Ints, Ints]:
    """Where each cell begins, and where the page that it is on ends (1.6)."""
    number = np.ndarray((count,), ">u2", data, 3, (pages.size,)).astype(np.int64)
    most = int(number.max())
    if 8 + 2 * most > pages.usable:
        raise NotPlain
    pointer = np.ndarray((count, most), ">u2", data, 8, (pages.size, 2)).astype(np.int64)
    is_cell = np.arange(most) < number[:, None]
    if (((pointer < 8 + 2 * number[:, None]) | (pointer >= pages.usable)) & is_cell).any():
        raise NotPlain
    page = np.arange(count, dtype=np.int64) * pages.size
    pointer += page[:, None]
    return pointer[is_cell], np.repeat(page + pages.usable, number)


def _decoded(data: Bytes, cell: Ints, edge: Ints, longest: int, asked: ColumnTypes) -> tuple[Ints, Columns]:
    """The rows in some cells: payload size, rowid, then the record (2.1): sizes of header and columns, then these."""
    number = max(asked, default=-1) + 1
    header = _Header(data, cell, number + _LONGEST_NUMBER)
    payload, rowid = header.number(), np.broadcast_to(np.asarray(header.number(), np.int64), cell.shape)
    end = header.at + payload
    body = header.at + header.number()
    # The rest of a row longer than U - 35 is on another page (1.6). The header must reach to the last column asked for.
    if bool((end > edge).any()) or _most(payload) > longest or int((body - header.at).min()) < number:
        raise NotPlain
    kinds = [header.number() for _ in range(number)]
    if bool((header.at > body).any()):
        raise NotPlain
    decoded: Columns = {}
    for stretch in _stretches(body, kinds):
        if (stretch.following > end).any():  # a column outside of the row
            raise NotPlain
        decoded |= _stretch(data, stretch, kinds, asked)
    return rowid, decoded


class _Header:
    """The numbers at the beginning of each cell, read one after the other in all rows at once."""

    def __init__(self, data: Bytes, at: Ints, likely: int) -> None:
        """Begins at some places; ``likely`` bytes of each row are cut out at once."""
        self._data, self._width = data, min(likely + -likely % 8, _SLACK)
        self._go_to(at)

    def _go_to(self, at: Ints) -> None:
        self._from, self._offset = at, 0
        self._rows = _cut(self._data, at, self._width)
        self._same = _same(self._rows)

    @property
    def at(self) -> Ints:
        """The place of the next number in each row."""
        return self._from + self._offset

    def number(self) -> _InRows:
        """The next variable-length integer (1.6); those of nine bytes are left to SQLite."""
        if self._offset + _LONGEST_NUMBER > self._width:
            self._go_to(self.at)
        byte = self._byte()
        if _most(byte) < _TWO_BYTES:
            return byte
        value = _low_bits(byte)
        for further in range(_LONGEST_NUMBER - 1, 0, -1):
            if _least(byte) < _TWO_BYTES:
                value, at = _uneven(self._data, value, self.at, np.flatnonzero(byte >= _TWO_BYTES), further)
                self._go_to(at)
                return value
            byte = self._byte()
            value = value << 7 | _low_bits(byte)
            if _most(byte) < _TWO_BYTES:
                return value
        raise NotPlain

    def _byte(self) -> int | Bytes:
        at, self._offset = self._offset, self._offset + 1
        return int(self._rows[0, at]) if self._same[at] else self._rows[:, at].copy()


def _low_bits(byte: int | Bytes) -> int | Ints:
    low = byte & (_TWO_BYTES - 1)
    return low if isinstance(low, int) else low.astype(np.int64)


def _uneven(data: Bytes, value: _InRows, at: Ints, longer: Ints, most: int) -> tuple[Ints, Ints]:
    """Variable-length integers of which some are longer than what was read of all, by at most so many bytes."""
    value = np.broadcast_to(np.asarray(value, np.int64), at.shape).copy()
    for _ in range(most):
        byte = data[at[longer]]
        value[longer] = value[longer] << 7 | byte & (_TWO_BYTES - 1)
        at[longer] += 1
        longer = longer[byte >= _TWO_BYTES]
        if not longer.size:
            return value, at
    raise NotPlain


def _cut(data: Bytes, at: Ints, width: int) -> Bytes:
    """So many bytes from each place on, a row for each place."""
    # NumPy copies a piece of 64 bytes as fast as one of eight.
    pieces = np.ndarray((data.size - width + 1,), f"V{width}", data, strides=(1,))
    return pieces[at].view(np.uint8).reshape(-1, width)


def _same(rows: Bytes) -> Flags:
    """Which bytes are the same in all rows; rows are some words long."""
    words = rows.view(np.uint64).T
    differ = [np.bitwise_or.reduce(word) ^ np.bitwise_and.reduce(word) for word in words]
    return np.asarray(np.array(differ).view(np.uint8) == 0)


def _least(kind: _InRows) -> int:
    return kind if isinstance(kind, int) else int(kind.min())


def _most(kind: _InRows) -> int:
    return kind if isinstance(kind, int) else int(kind.max())


def _length(kind: _InRows) -> int | Ints:
    if isinstance(kind, int):
        return int(_BYTES[kind]) if kind < _BYTES.size else (kind - 12) >> 1
    if _most(kind) < _BYTES.size:
        return _BYTES[kind]
    return np.where(kind < _BYTES.size, _BYTES[kind % _BYTES.size], (kind - 12) >> 1)


class _Stretch(NamedTuple):
    """Columns that are equally far from one place in all rows."""

    body: Ints  # the place in each row
    offsets: dict[int, int]  # how far from there each column begins, by its position
    following: Ints  # the place in each row behind the last column, whose length alone may differ from row to row


def _stretches(body: Ints, kinds: list[_InRows]) -> Iterator[_Stretch]:
    offset, offsets = 0, dict[int, int]()
    for column, kind in enumerate(kinds):
        length = _length(kind)
        offsets[column] = offset
        if column + 1 < len(kinds) and isinstance(length, int):
            offset += length
            continue
        following = body + (offset + length)
        yield _Stretch(body, offsets, following)
        body, offset, offsets = following, 0, {}


def _stretch(data: Bytes, stretch: _Stretch, kinds: list[_InRows], asked: ColumnTypes) -> Columns:
    """What was asked for of the columns of a stretch, by their positions."""
    decoded: Columns = {}
    offsets = {at: offset for at, offset in stretch.offsets.items() if at in asked}
    numbers = [at for at in offsets if asked[at] not in {ENCODED_TEXT, ENCODED_BLOB}]
    rows = _cut(data, stretch.body, max(offsets[at] for at in numbers) + _NUMBER_BYTES) if numbers else data
    for at, offset in offsets.items():
        if at not in numbers:
            decoded[at] = _values(data, kinds[at], stretch.body + offset, asked[at])
        else:
            number = _float if pa.types.is_floating(asked[at]) else _integer
            decoded[at] = number(rows, offset, kinds[at])
    return decoded


def _float(rows: Bytes, offset: int, kind: _InRows) -> pa.ChunkedArray | None:
    """Floats, of which SQLite stores those without decimals as integers."""
    kind = np.broadcast_to(kind, (len(rows),))
    if not kind.any():
        return None
    is_float = kind == _FLOAT
    value = np.ndarray((len(rows),), ">f8", rows, offset, (rows.shape[1],)).astype(np.float64)
    if (whole := _integer(rows, offset, np.where(is_float, _NULL, kind))) is not None:
        value = np.where(is_float, value, whole.fill_null(0))
    return pa.chunked_array([pa.array(value, mask=kind == _NULL)])


def _integer(rows: Bytes, offset: int, kind: _InRows) -> pa.ChunkedArray | None:
    least, most = _least(kind), _most(kind)
    if most == _NULL:
        return None
    if most > _ONE or (most >= _FLOAT and bool(np.any(kind == _FLOAT))):
        raise NotPlain
    null = kind == _NULL if least == _NULL else None
    if least >= _ZERO:
        value = np.full(len(rows), kind == _ONE, dtype=np.int8)
    else:
        value = _words(rows, offset, kind)
        if null is not None:
            value[null] = 0
    return pa.chunked_array([pa.array(value, mask=null)])


def _words(rows: Bytes, offset: int, kind: _InRows) -> Ints:
    """The integers at a distance from the beginnings of rows; nonsense where they are null."""
    widest = kind if isinstance(kind, int) else int(kind[kind < _ZERO].max())
    word = np.dtype(_WORDS[widest])
    value = np.ndarray((len(rows),), word.newbyteorder(">"), rows, offset, (rows.shape[1],)).astype(word)
    shift = (_SHIFT - (64 - 8 * value.itemsize)).astype(word)
    if not isinstance(kind, int) or shift[kind]:
        value >>= shift[kind]
    if _most(kind) >= _ZERO:
        value[kind == _ZERO] = 0
        value[kind == _ONE] = 1
    return value


def _values(data: Bytes, kinds: _InRows, body: Ints, type_: pa.DataType) -> pa.ChunkedArray | None:
    """Texts or bytes as Arrow's views into the pages, of which distinct ones are then stored once.

    A view is the length and twelve bytes: the text itself if it fits, else its first four bytes, the number of the
    buffer and the place in it (https://arrow.apache.org/docs/format/Columnar.html).
    """
    kind = np.broadcast_to(kinds, body.shape)
    length = np.broadcast_to(_length(kinds), body.shape)
    first, view_type = (_FIRST_TEXT, pa.string_view()) if type_ == ENCODED_TEXT else (_FIRST_BLOB, pa.binary_view())
    null = kind == _NULL
    if null.all():
        return None
    of_type = null | ((kind >= first) & (kind & 1 == first & 1))
    if not of_type.all() or (body + length > data.size).any():
        raise NotPlain
    view = np.zeros((kind.size, 4), dtype="<i4")
    view[:, 0] = length
    short, long = np.flatnonzero(length <= _INLINE_BYTES), np.flatnonzero(length > _INLINE_BYTES)
    letters = _cut(data, body[short], _INLINE_BYTES)
    letters[np.arange(_INLINE_BYTES) >= length[short, None]] = 0
    view[short, 1:] = letters.view("<i4")
    view[long, 1] = _cut(data, body[long], 4).view("<i4").ravel()
    view[long, 3] = body[long]
    valid = np.packbits(~null, bitorder="little")
    views = pa.Array.from_buffers(view_type, kind.size, [*map(pa.py_buffer, (valid, view, data))])
    return pa.chunked_array([views.cast(type_.value_type).dictionary_encode()], type=type_)
