"""Decodes marker texts: every distinct text is parsed once, however many ranges carry it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.lookups import lookup
from tracekit.markers import DIALECTS
from tracekit.markers.base import (
    CompiledGraphMarker,
    KernelMapMarker,
    ModuleMarker,
    OperatorMarker,
    PieceMarker,
    StepMarker,
    Unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Dialect, Marker
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

    Attributes:
        markers: The distinct markers.
        of_text: For every text the row of its marker; -1 for plain text.
    """

    markers: list[Marker]
    of_text: Ints

    def rows(self, *kinds: type) -> Flags:
        """For every marker whether it is of one of these kinds; a last False stands for row -1."""
        return np.array([isinstance(marker, kinds) for marker in self.markers] + [False])

    def ranges(self, recording: Recording, *kinds: type) -> Flags:
        """For every range of the recording whether its marker is of one of these kinds."""
        return lookup(self.rows(*kinds)[self.of_text], integers(recording.ranges, "text"), missing=False)


def decode(texts: Sequence[str], dialects: Sequence[Dialect] = DIALECTS) -> Decoded:
    """Parses distinct texts; the first dialect that understands a text wins."""
    of_text = np.full(len(texts), -1, dtype=np.int64)
    markers: list[Marker] = []
    column = pa.array(texts, pa.large_string())
    # Most texts are of none, which one expression for all tells faster than one for each.
    likely = _matching(column, "|".join(f"({dialect.CANDIDATES})" for dialect in dialects))
    column = column.take(pa.array(likely))
    for dialect in dialects:
        for row in likely[_matching(column, dialect.CANDIDATES)].tolist():
            if of_text[row] < 0 and (marker := dialect.parse(texts[row])) is not None:
                of_text[row] = len(markers)
                markers.append(marker)
    return Decoded(markers, of_text)


def paths_of(markers: list[Marker]) -> Ints:
    """A number for every marker, the same for markers of the same path; -1 for markers without one."""
    numbers: dict[str, int] = {}
    paths = [numbers.setdefault(m.path, len(numbers)) if isinstance(m, ModuleMarker) else -1 for m in markers]
    return np.array(paths, dtype=np.int64)


def _matching(texts: pa.Array, pattern: str) -> Rows:
    """Rows of the texts that match an expression anywhere."""
    return np.flatnonzero(np.asarray(pc.match_substring_regex(texts, pattern)))
