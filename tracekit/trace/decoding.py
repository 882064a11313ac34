"""Decodes marker texts: every distinct text is parsed once, however many ranges carry it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers import DIALECTS
from tracekit.markers.base import (
    CompiledGraphMarker,
    Dialect,
    KernelMapMarker,
    Marker,
    ModuleMarker,
    OperatorMarker,
    PieceMarker,
    StepMarker,
    Unreadable,
)
from tracekit.recording.tables import Recording

#: Names of marker types in the tables; ranges of frameworks are plain ranges there.
MARKER_KINDS: dict[type, str] = {
    ModuleMarker: "module",
    OperatorMarker: "operator",
    StepMarker: "step",
    PieceMarker: "piece",
    CompiledGraphMarker: "compiled_graph",
    KernelMapMarker: "kernel_map",
    Unreadable: "unreadable",
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The markers of a recording.

    Where every call has shapes of its own there are as many markers as calls, but few that differ in anything else.
    What does not depend on tensors is asked of those few.

    Attributes:
        of_text: For every text the row of its marker; -1 for plain text.
        bare: The first of all markers that differ only in tensors.
        canonical_marker: For every marker its row among those; a last -1 stands for row -1.
        kind: For every bare marker its row in ``kinds``, the types that occur; a last -1 stands for row -1.
        path: For every marker the row of its path in ``paths``, -1 for those without; a last -1 stands for row -1.
    """

    markers: list[Marker]
    of_text: Ints
    bare: list[Marker]
    canonical_marker: Rows
    kinds: list[type]
    kind: Rows
    paths: list[str]
    path: Ints

    def rows(self, *kinds: type) -> Flags:
        """For every marker whether it is of one of these kinds; a last False stands for row -1."""
        return np.array([*(issubclass(kind, kinds) for kind in self.kinds), False])[self.kind][self.canonical_marker]

    def with_more(self, markers: list[Marker]) -> "Decoded":
        """The same, and behind them further markers, which no text is."""
        return _decoded([*self.markers, *markers], self.of_text)

    def ranges(self, recording: Recording, *kinds: type) -> Flags:
        """For every range of the recording whether its marker is of one of these kinds."""
        return lookup(self.rows(*kinds)[self.of_text], recording.ranges.text, missing=False)


def decode(texts: Sequence[str], dialects: Sequence[Dialect] = DIALECTS) -> Decoded:
    """Parses distinct texts; the first dialect that understands a text wins."""
    of_text = np.full(len(texts), -1, dtype=np.int32)
    markers: list[Marker] = []
    column = pa.array(texts, pa.large_string())
    # Most texts are of none, which one expression for all finds faster than one for each.
    left = _matching(column, "|".join(f"({dialect.candidates})" for dialect in dialects))
    column = column.take(pa.array(left))
    for dialect in dialects:
        understood = len(markers)
        for row in left[_matching(column, dialect.candidates)].tolist():
            if (marker := dialect.parse(texts[row])) is not None:
                of_text[row] = len(markers)
                markers.append(marker)
        if len(markers) > understood:
            missing = np.flatnonzero(of_text[left] < 0)
            left, column = left[missing], column.take(pa.array(missing))
    return _decoded(markers, of_text)


def _decoded(markers: list[Marker], of_text: Ints) -> Decoded:
    numbers: dict[object, int] = {}
    first: list[Marker] = []
    rows = []
    for marker in markers:
        key = _without_tensors(marker) if isinstance(marker, ModuleMarker) else id(marker)
        row = numbers.setdefault(key, len(first))
        if row == len(first):
            first.append(marker)
        rows.append(row)
    kinds: dict[type, int] = {}
    kind = np.array([*(kinds.setdefault(type(marker), len(kinds)) for marker in first), -1], dtype=np.int32)
    paths: dict[str, int] = {}
    path = [paths.setdefault(item.path, len(paths)) if isinstance(item, ModuleMarker) else -1 for item in first]
    row_of = np.array([*rows, -1], dtype=np.int32)
    return Decoded(markers, of_text, first, row_of, [*kinds], kind, [*paths], np.array([*path, -1], np.int32)[row_of])


def _without_tensors(marker: ModuleMarker) -> tuple[object, ...]:
    flags = (marker.class_only, marker.numbered, marker.only_result)
    words = (marker.path, marker.class_name, marker.static_params, marker.phase, marker.kind)
    return *words, *flags, id(marker.params), id(marker.cause)


def _matching(texts: pa.Array, pattern: str) -> Rows:
    return np.flatnonzero(np.asarray(pc.match_substring_regex(texts, pattern)))
