"""Wording of markers: the parts that tell a second range from a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.markers.base import ModuleMarker
from tracekit.trace.decoding import paths_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.trace.calls.spans import Spans
    from tracekit.trace.decoding import Decoded


class Wording(NamedTuple):
    """What the marker of every span says.

    Attributes:
        path: A number, the same where the path is; -1 where the marker has none.
        only_result: Whether it tells outputs and no inputs.
        quiet: Whether it tells no tensors at all.
        placed: Whether it belongs to a call of which more than the class is known.
    """

    path: Ints
    only_result: Flags
    quiet: Flags
    placed: Flags

    @staticmethod
    def of(spans: Spans, decoded: Decoded) -> Wording:
        """Looks up the marker of every span."""
        columns = [(False, False, False)] * (len(decoded.markers) + 1)
        for row, marker in enumerate(decoded.markers):
            if isinstance(marker, ModuleMarker):
                placed = not (marker.class_only or marker.only_result)
                columns[row] = marker.only_result, marker.quiet, placed
        return Wording(paths_of(decoded)[spans.marker], *(column[spans.marker] for column in np.array(columns).T))


def says_less(less: Rows, more: Rows, markers: list[Marker]) -> Flags:
    """Which of some markers say the same as their counterparts without their tensors; each distinct pair asked once."""
    pairs, pair = np.unique(less.astype(np.int64) * len(markers) + more, return_inverse=True)
    if not pairs.size:
        return np.empty(0, dtype=bool)
    answers = [_says_less(markers[code // len(markers)], markers[code % len(markers)]) for code in pairs.tolist()]
    return np.array(answers, dtype=bool)[pair]


def _says_less(less: Marker, more: Marker) -> bool:
    return (
        isinstance(less, ModuleMarker)
        and isinstance(more, ModuleMarker)
        and less.quiet
        and not (more.quiet or more.only_result)
        and (less.path, less.params, less.static_params, less.class_name, less.phase)
        == (more.path, more.params, more.static_params, more.class_name, more.phase)
    )
