"""The pages of a SQLite file, and which of them are the leaves of a table.

The format is fixed and documented; numbers in comments are sections of https://sqlite.org/fileformat2.html.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from tracekit.arrays.types import Bytes, Ints

LEAF = 13
_INTERIOR = 5
_HEADER_BYTES = 100
_DEEPEST = 20
#: Bytes behind the last page in memory.
SLACK = 256


class NotPlain(Exception):  # noqa: N818
    """The table holds something that only SQLite itself should read."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of an open file, numbered from 0."""

    file: FileIO
    count: int
    size: int
    usable: int
    utf8: bool

    def load(self, pages: Ints) -> Bytes:
        """Some pages end to end, and ``SLACK`` more bytes, since so many can then be taken from anywhere."""
        data = np.empty(pages.size * self.size + SLACK, dtype=np.uint8)
        data[-SLACK:] = 0
        view = data.data
        edges = np.flatnonzero(np.diff(pages) != 1) + 1
        for begin, end in itertools.pairwise([0, *edges.tolist(), pages.size]):
            space = view[begin * self.size : end * self.size]
            self.file.seek(int(pages[begin]) * self.size)
            read = self.file.readinto(space)
            if read != len(space):
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
        inside = level.size and int(level.min()) >= 1 and int(level.max()) < pages.count
        if not inside or visited > pages.count:
            raise NotPlain
        if pages.load(level[:1])[0] == LEAF:
            return level  # leaves are all at one depth; each is checked when it is decoded
        data = pages.load(level)[:-SLACK].reshape(level.size, pages.size)
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
