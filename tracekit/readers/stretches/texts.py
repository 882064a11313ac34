"""Which rows of ranges have texts that must not be cut; every distinct text is asked about once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.rows.encoded import rows_of, sorted_strings, texts_at, used_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tracekit.arrays.types import Flags, Ints


class Fixed:
    """Remembers the answers of ``ask``."""

    def __init__(self, strings: pa.Table, ask: Callable[[list[str]], Flags]) -> None:
        self._ask = ask
        self._ids, self._values = sorted_strings(strings)
        self._known: dict[str, bool] = {}
        self._registered = np.full(self._ids.size + 1, -1, dtype=np.int8)
        self._registered[-1] = 0

    def rows(self, events: pa.Table) -> Flags:
        """Which rows have such a text, registered or inline."""
        fixed = np.zeros(events.num_rows, dtype=bool)
        if "textId" in events.column_names:
            fixed |= self._of_ids(rows_of(events.column("textId"), self._ids))
        if "text" in events.column_names:
            encoded = events.column("text").combine_chunks()
            index = np.asarray(encoded.indices.fill_null(-1))
            used = used_rows(index, len(encoded.dictionary))
            of_entry = np.zeros(len(encoded.dictionary) + 1, dtype=bool)
            of_entry[used] = self._answers(texts_at(encoded.dictionary, used))
            fixed |= of_entry[index]
        return fixed

    @property
    def texts(self) -> list[str]:
        """All texts that were seen."""
        return list(self._known)

    def _of_ids(self, position: Ints) -> Flags:
        used = used_rows(position, self._ids.size)
        new = used[self._registered[used] < 0]
        self._registered[new] = self._answers(texts_at(self._values, new))
        return np.asarray(self._registered[position] > 0)

    def _answers(self, texts: list[str]) -> list[bool]:
        new = [*dict.fromkeys(text for text in texts if text not in self._known)]
        if new:
            self._known |= dict(zip(new, self._ask(new).tolist(), strict=True))
        return [self._known[text] for text in texts]
