"""Calls of modules of TorchScript models, out of the hierarchy that ``with_modules`` writes on every operator.

The trace has no event for a call. It is inferred: operators of one module that follow each other ran in one call of
it, so two calls in a row of which no other module has an operator are one. An operator without a hierarchy is outside
of the model, and ends the calls. A part of a model that TorchScript compiled for itself, so that autograd
differentiates it as a whole, has a root without a class (``TOP()::<forward op>``): it continues the operator around
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import nesting_order, one_axis, parents
from tracekit.markers.scripted import frames

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.scripted import Frame
    from tracekit.readers.kineto.gathering import Columns


class _Calls:
    """Calls on one thread: those that are open, outermost first, and those that have ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int, str]] = []
        self._open: list[tuple[str, int, int]] = []

    def operator(self, hierarchy: list[str], start: int, end: int) -> None:
        """Opens and ends calls for one more operator."""
        common = 0
        for text, (known, *_) in zip(hierarchy, self._open, strict=False):
            if text != known:
                break
            common += 1
        self.end(common)
        self._open = [(text, begin, max(last, end)) for text, begin, last in self._open]
        self._open += [(text, start, end) for text in hierarchy[common:]]

    def end(self, keep: int = 0) -> None:
        """Ends all calls but the outermost ones."""
        self.ended += [(start, end, text) for text, start, end in self._open[keep:]]
        self._open = self._open[:keep]


class _Hierarchies:
    """The hierarchies of a trace."""

    def __init__(self, texts: list[str]) -> None:
        self._frames: list[list[Frame]] = [frames(text) for text in texts]
        nameless = [bool(known) and known[0].is_nameless_root for known in self._frames]
        #: Whether each continues another one.
        self.continues: Flags = np.array(nameless, dtype=bool)
        #: Whether each says of which model it is.
        self.known: Flags = np.array([bool(known) for known in self._frames], dtype=bool) & ~self.continues
        self._texts: dict[tuple[int, int], list[str]] = {}

    def calls(self, above: int, row: int) -> list[str]:
        """The calls of a hierarchy, outermost first: of modules with those around them, of others by themselves.

        Args:
            above: The hierarchy that it continues; its own row if it continues none.
            row: The hierarchy.
        """
        if (above, row) not in self._texts:
            known = self._frames[row] if above == row else self._frames[above] + self._frames[row][1:]
            self._texts[above, row] = [
                ".".join(one.text for one in known[:size]) if frame.calls_module else frame.text
                for size, frame in enumerate(known, 1)
            ]
        return self._texts[above, row]


def scripted_calls(operators: Columns, names: list[str], hierarchies: list[str], texts: dict[str, int]) -> Columns:
    """Ranges of the calls of modules, and of the methods and functions that these call.

    Args:
        operators: All operators.
        names: Their names by row.
        hierarchies: Their hierarchies by row.
        texts: Rows of texts, to which those of calls are added.
    """
    known = _Hierarchies(hierarchies)
    rows: list[tuple[int, int, int, int]] = []
    if known.known.any():
        # The model itself is an operator, too, named by its method; others have a namespace.
        is_model = np.array(["::" not in name for name in names], dtype=bool)
        operators = operators | {"is_model": is_model[operators["name"]]}
        for thread in np.unique(operators["thread"]).tolist():
            on_thread = np.flatnonzero(operators["thread"] == thread)
            calls = _calls({name: column[on_thread] for name, column in operators.items()}, known)
            rows += [(start, end, thread, texts.setdefault(text, len(texts))) for start, end, text in calls]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return {name: table[:, at] for at, name in enumerate(("start", "end", "thread", "text"))}


def _calls(operators: Columns, known: _Hierarchies) -> list[tuple[int, int, str]]:
    """The calls on one thread."""
    start, end = operators["start"], operators["end"]
    order = nesting_order(*one_axis([np.zeros_like(start)] * 2, [start, end]))
    start, end, hierarchy = start[order], end[order], operators["hierarchy"][order]
    around, _ = parents(start, end)
    above = _continued(hierarchy, around, known)
    ends_all = (around < 0) & ((above < 0) | operators["is_model"][order])
    calls = _Calls()
    columns = (column.tolist() for column in (above, hierarchy, start, end, ends_all))
    for base, row, begin, last, first in zip(*columns, strict=True):
        if first:
            calls.end()
        if base >= 0:
            calls.operator(known.calls(base, row), begin, last)
    calls.end()
    return calls.ended


def _continued(hierarchy: Ints, around: Rows, known: _Hierarchies) -> Ints:
    """For every operator the hierarchy that its own continues, or its own if it continues none; -1 for none."""
    outer = np.where(known.continues[hierarchy], around, -1)
    while (others := (outer >= 0) & ~known.known[hierarchy[outer]]).any():
        outer[others] = around[outer[others]]
    return np.where(known.known[hierarchy], hierarchy, np.where(outer >= 0, hierarchy[outer], -1))
