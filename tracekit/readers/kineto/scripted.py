"""Calls of modules of TorchScript models, out of the hierarchy that ``with_modules`` writes on every operator.

The trace has no event for a call. It is inferred: operators of one module that follow each other ran in one call of it,
so two calls in a row of which no other module has an operator are one. An operator without a hierarchy is outside of
the model, and ends the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import nesting_order, one_axis, parents
from tracekit.markers.scripted import frames

if TYPE_CHECKING:
    from tracekit.readers.kineto.gathering import Columns


class _Calls:
    """Calls on one thread: those that are open, outermost first, and those that have ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int, str]] = []
        self._open: list[tuple[str, str, int, int]] = []

    def operator(self, hierarchy: list[tuple[str, str]], start: int, end: int) -> None:
        """Opens and ends calls for one more operator."""
        common = 0
        for (name, _), (known, *_) in zip(hierarchy, self._open, strict=False):
            if name != known:
                break
            common += 1
        self.end(common)
        self._open = [(name, text, begin, max(last, end)) for name, text, begin, last in self._open]
        self._open += [(name, text, start, end) for name, text in hierarchy[common:]]

    def end(self, keep: int = 0) -> None:
        """Ends all calls but the outermost ones."""
        self.ended += [(start, end, text) for _, text, start, end in self._open[keep:]]
        self._open = self._open[:keep]


def scripted_calls(operators: Columns, names: list[str], hierarchies: list[str], texts: dict[str, int]) -> Columns:
    """Ranges of the calls of modules.

    Args:
        operators: All operators.
        names: Their names by row.
        hierarchies: Their hierarchies by row.
        texts: Rows of texts, to which those of calls are added.
    """
    named = [frames(text) for text in hierarchies]
    rows: list[tuple[int, int, int, int]] = []
    if any(named):
        # The model itself is an operator, too, named by its method; others have a namespace.
        is_model = np.array(["::" not in name for name in names], dtype=bool)
        operators = operators | {"is_model": is_model[operators["name"]]}
        for thread in np.unique(operators["thread"]).tolist():
            on_thread = np.flatnonzero(operators["thread"] == thread)
            calls = _calls({name: column[on_thread] for name, column in operators.items()}, named)
            rows += [(start, end, thread, texts.setdefault(text, len(texts))) for start, end, text in calls]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return {name: table[:, at] for at, name in enumerate(("start", "end", "thread", "text"))}


def _calls(operators: Columns, named: list[list[tuple[str, str]]]) -> list[tuple[int, int, str]]:
    """The calls on one thread."""
    start, end = operators["start"], operators["end"]
    order = nesting_order(*one_axis([np.zeros_like(start)] * 2, [start, end]))
    start, end, hierarchy = start[order], end[order], operators["hierarchy"][order]
    outside = np.array([not frames_of_row for frames_of_row in named], dtype=bool)[hierarchy]
    ends_all = (parents(start, end)[0] < 0) & (outside | operators["is_model"][order])
    calls = _Calls()
    columns = (column.tolist() for column in (hierarchy, start, end, ends_all))
    for row, begin, last, first in zip(*columns, strict=True):
        if first:
            calls.end()
        if named[row]:
            calls.operator(named[row], begin, last)
    calls.end()
    return calls.ended
