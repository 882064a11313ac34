"""Columns of ``kernels`` about operators: which one launched each piece of work, whatever the hierarchy is keyed by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.lookups import lookup
from tracekit.recording.tables import CPU_OP
from tracekit.schema import CATEGORY, Column
from tracekit.tables.base import category, or_null
from tracekit.trace.operators import operator_ranges

if TYPE_CHECKING:
    from tracekit.arrays.types import Rows
    from tracekit.markers.base import Shapes
    from tracekit.trace.evidence import Evidence

COLUMNS = (
    Column(
        "op",
        CATEGORY,
        "Innermost operator around its launch (of torch.profiler; of emit_nvtx, nsys --pytorch or PyProf), such as "
        "aten::addmm; for graph work, around the graph capture of its node; of a cpu_op, its own name. Null if "
        "unknown.",
        nullable=True,
    ),
    Column(
        "op_shapes",
        CATEGORY,
        "Shapes of that operator's inputs, as JSON: [[8, 16], [16, 4], []]; inputs that are no tensors are empty. Null "
        "if its marker does not record them.",
        nullable=True,
    ),
    Column(
        "op_types",
        CATEGORY,
        'Dtypes of that operator\'s inputs, as JSON: ["float16", "float16", ""]; inputs that are no tensors are empty. '
        "Null if its marker does not record them; Chrome traces with record_shapes do.",
        nullable=True,
    ),
    Column(
        "op_seq",
        pa.int64(),
        "Sequence number of autograd in that operator's marker; null if it has none. An operator and the backward node "
        "that it makes have the same.",
        nullable=True,
    ),
)


class Named:
    """The operators that launched the work of a recording."""

    def __init__(self, evidence: Evidence) -> None:
        recording, operators = evidence.recording, evidence.operators
        self._text = _text_of_work(evidence)
        self._kind, self._work_name = (integers(recording.work, column) for column in ("kind", "name"))
        names: dict[str, int] = {}
        of_operator = [names.setdefault(operator.name, len(names)) for operator in operators.distinct]
        own = recording.names if (self._kind == CPU_OP).any() else []
        self._of_name = np.array([*(names.setdefault(name, len(names)) for name in own), -1])
        self._of_text = np.array([*of_operator, -1])[operators.of_text]
        shapes: dict[str, int] = {}
        told = [-1 if item.inputs is None else _number(shapes, item.inputs) for item in operators.distinct]
        self._shapes_of_text = np.array([*told, -1])[operators.of_text]
        types: dict[str, int] = {}
        told = [-1 if item.types is None else _number(types, item.types) for item in operators.distinct]
        self._types_of_text, self._types = np.array([*told, -1])[operators.of_text], list(types)
        self._names, self._shapes, self._number = list(names), list(shapes), operators.number

    def columns(self, rows: Rows) -> dict[str, object]:
        """The operators of some work."""
        text = self._text[rows]
        name = self._of_text[text]
        on_cpu = np.flatnonzero(self._kind[rows] == CPU_OP)
        if on_cpu.size:
            own = self._of_name[self._work_name[rows[on_cpu]]]
            unmarked = own != name[on_cpu]
            name[on_cpu] = own
            text[on_cpu[unmarked]] = -1
        return {
            "op": category(name, self._names),
            "op_shapes": category(self._shapes_of_text[text], self._shapes),
            "op_types": category(self._types_of_text[text], self._types),
            "op_seq": or_null(self._number[text]),
        }


def _number(numbers: dict[str, int], inputs: Shapes | tuple[str, ...]) -> int:
    return numbers.setdefault(json.dumps(inputs), len(numbers))


def _text_of_work(evidence: Evidence) -> Rows:
    """The text of the innermost operator around the launch of all work, or around the graph capture of its node."""
    launched, lineage, origins = evidence.launched, evidence.lineage, evidence.origins
    ranges = operator_ranges(evidence.recording, evidence.axis, evidence.operators)
    if not ranges.text.size:
        return np.full(launched.launch.size, -1, dtype=np.int64)
    at_launch = ranges.texts_around(evidence.axis.launch_start, evidence.axis.launch_end)
    text = lookup(at_launch, launched.launch)
    captured = np.full(origins.start.size, -1, dtype=np.int64)
    known = np.flatnonzero(origins.certain)
    captured[known] = ranges.texts_around(origins.start[known], origins.end[known])
    return np.where(launched.replayed, lookup(captured, lineage.of_work), text)
