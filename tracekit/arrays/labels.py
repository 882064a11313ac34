"""Columns of few distinct strings as codes, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tracekit.arrays.types import Ints, Rows


class Labels(NamedTuple):
    """For each row the place of its word among the distinct words, -1 for null."""

    code: Rows
    words: list[str]

    def named(self, codes: Iterable[int] | Ints) -> list[str | None]:
        """The words of some codes, None for -1."""
        words = [*self.words, None]
        return [words[code] for code in np.asarray(codes, np.int64).tolist()]

    def of(self, *words: str) -> Rows:
        """The codes of those words that occur."""
        return np.array([at for at, word in enumerate(self.words) if word in words], np.int64)

    def containing(self, text: str) -> Rows:
        """The codes of the words that contain a lowercase text, ignoring their case."""
        return np.array([at for at, word in enumerate(self.words) if text in word.lower()], np.int64)


def labels(table: pa.Table, column: str) -> Labels:
    """A column of categories as codes."""
    values = table.column(column).combine_chunks()
    code = np.asarray(values.indices.fill_null(-1), np.int64)
    return Labels(code, values.dictionary.to_pylist())
