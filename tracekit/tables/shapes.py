"""Columns of ``calls`` about tensors: shapes, dtypes and devices, as the markers of the calls say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.markers.base import ModuleMarker
from tracekit.schema import SHAPES, TYPES, Column
from tracekit.tables.base import or_null

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tracekit.arrays.types import Rows
    from tracekit.markers.base import Marker
    from tracekit.trace.evidence import Evidence

_KWARGS = pa.map_(pa.string(), SHAPES)
_KWARG_TYPES = pa.map_(pa.string(), TYPES)

COLUMNS = (
    Column("inputs", SHAPES, "Shapes of positional tensors; null if the marker does not record them.", nullable=True),
    Column("outputs", SHAPES, "Shapes of results; null if no marker records them.", nullable=True),
    Column(
        "kwargs",
        _KWARGS,
        "Shapes of keyword tensors by argument name; null if the marker does not record them.",
        nullable=True,
    ),
    Column(
        "input_types",
        TYPES,
        "Dtype and device of each positional tensor; null if the marker does not record them.",
        nullable=True,
    ),
    Column(
        "output_types",
        TYPES,
        "Dtype and device of each result; null if no marker records them.",
        nullable=True,
    ),
    Column(
        "kwarg_types",
        _KWARG_TYPES,
        "Dtype and device of each keyword tensor by argument name; null if the marker does not record them.",
        nullable=True,
    ),
)


class Shaped:
    """Shapes and types of calls, taken from the distinct markers."""

    def __init__(self, evidence: Evidence) -> None:
        self._calls = evidence.calls
        markers = evidence.decoded.markers
        self._inputs = _by_marker(markers, lambda marker: marker.inputs, SHAPES)
        self._outputs = _by_marker(markers, lambda marker: marker.outputs, SHAPES)
        self._kwargs = _by_marker(markers, lambda marker: tuple(marker.kwargs.items()), _KWARGS)
        self._types = _by_marker(markers, lambda marker: marker.types or None, TYPES)
        self._kwarg_types = _by_marker(markers, lambda marker: tuple(marker.kwarg_types.items()) or None, _KWARG_TYPES)

    def columns(self, rows: Rows) -> dict[str, object]:
        """The shapes and types of some calls."""
        marker, outputs = self._calls.marker[rows], self._calls.outputs[rows]
        result = np.where(outputs >= 0, outputs, marker)
        return {
            "inputs": _said(self._inputs, marker),
            "outputs": _said(self._outputs, result),
            "kwargs": _said(self._kwargs, marker),
            "input_types": _said(self._types, marker),
            "output_types": _said(self._types, outputs),
            "kwarg_types": _said(self._kwarg_types, marker),
        }


def _by_marker(markers: list[Marker], field: Callable[[ModuleMarker], Hashable], type_: pa.DataType) -> pa.Array:
    """What each marker says; many say the same, of which Arrow makes a value once."""
    values: dict[Hashable, int] = {None: 0}
    rows = [
        values.setdefault(field(marker), len(values)) if isinstance(marker, ModuleMarker) else 0 for marker in markers
    ]
    return pa.array(values, type_).take(pa.array(rows, pa.int64()))


def _said(by_marker: pa.Array, marker: Rows) -> pa.Array | None:
    """What some markers say; None if no marker says anything."""
    return by_marker.take(or_null(marker)) if by_marker.null_count < len(by_marker) else None
