"""Operators among the ranges of a recording, and which of them is around a launch.

Every text of a marked operator may be another (it counts its calls), so texts are read a column at a time, and names
and shapes are kept once each.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import innermost, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers import torch_texts
from tracekit.markers.base import OperatorMarker, Shapes
from tracekit.markers.literal import MOST_CHARACTERS
from tracekit.markers.plain import LONGEST_NAME
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import PUSH_POP, Recording
from tracekit.trace.decoding import Decoded


class Operator(NamedTuple):
    """A name, and the shapes and dtypes of inputs; None where the text does not record them."""

    name: str
    inputs: Shapes | None
    types: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators that texts name.

    Attributes:
        of_text: For every text of the recording the row of its operator, or -1; a last -1 is of ranges without a text.
        number: For every text the sequence number of autograd in it, or -1, and a last -1.
        labels: Texts that torch numbered, but which are somebody's own, by their rows: without the number.
    """

    distinct: list[Operator]
    of_text: Rows
    number: Ints
    labels: dict[int, str]

    @property
    def by_torch(self) -> Flags:
        """Which texts are operators or labels that torch numbered, and a last False."""
        flags = self.of_text >= 0
        flags[list(self.labels)] = True
        return flags


def operators_of(texts: list[str], decoded: Decoded) -> Operators:
    """Reads the operators among the texts of a recording: those that a dialect understands, and those of torch."""
    of_text = np.full(len(texts) + 1, -1, dtype=np.int64)
    number = np.full(len(texts) + 1, -1, dtype=np.int64)
    numbers: dict[Operator, int] = {}
    for text in np.flatnonzero(decoded.rows(OperatorMarker)[decoded.of_text]).tolist():
        marker = decoded.marker(decoded.of_text[text])
        if isinstance(marker, OperatorMarker) and marker.name is not None:
            name = f"{marker.namespace}.{marker.name}" if marker.namespace else marker.name
            operator = Operator(name[:LONGEST_NAME], marker.inputs or None)
            of_text[text] = numbers.setdefault(operator, len(numbers))
    others = np.flatnonzero(decoded.of_text < 0)
    column = pa.array([texts[row] for row in others.tolist()], pa.large_string())
    fields = torch_texts.fields(old=bool(pc.any(pc.match_substring(column, torch_texts.OLD_SIGN)).as_py()))
    chosen = np.flatnonzero(_candidates(column, fields))
    if not chosen.size:
        return Operators(list(numbers), of_text, number, {})
    rows = others[chosen]
    distinct, own, called, number[rows] = _of_torch(column.take(pa.array(chosen)), fields)
    known = np.full(len(distinct), -1, dtype=np.int64)
    for row in np.unique(own[called]).tolist():
        known[row] = numbers.setdefault(distinct[row], len(numbers))
    of_text[rows] = np.where(called, known[own], -1)
    labels = {int(rows[at]): distinct[own[at]].name for at in np.flatnonzero(~called).tolist()}
    return Operators(list(numbers), of_text, number, labels)


def _candidates(column: pa.Array, fields: torch_texts.Fields) -> Flags:
    with_fields = pc.and_not(pc.match_substring_regex(column, fields.any), pc.match_substring_regex(column, r"^[\s{]"))
    matches = pc.or_(with_fields, pc.match_substring_regex(column, torch_texts.NAMES))
    return np.asarray(pc.and_(matches, pc.less_equal(pc.binary_length(column), MOST_CHARACTERS)))


def _of_torch(texts: pa.Array, fields: torch_texts.Fields) -> tuple[list[Operator], Rows, Flags, Ints]:
    """Distinct operators among texts that torch wrote, and for every text the row of its own.

    Also which texts are operators, not labels of a user that torch numbered; and the number of each, or -1.
    """
    digits = pc.struct_field(pc.extract_regex(texts, fields.sequence), "seq")
    number = np.asarray(pc.max_element_wise(digits.cast(pa.int64()), -1))
    plain = pc.replace_substring_regex(texts, fields.counting, "").dictionary_encode()
    of_text = np.asarray(plain.indices).astype(np.int64)
    parts = pc.extract_regex(plain.dictionary, torch_texts.NAME_AND_INPUTS)
    name, sizes, types = (pc.struct_field(parts, field) for field in ("name", "sizes", "types"))
    called = np.asarray(pc.not_equal(sizes, ""))
    for form in (torch_texts.NAMES, torch_texts.IDENTIFIER):
        called = called | np.asarray(pc.match_substring_regex(name, form))
    words = zip(name.to_pylist(), sizes.to_pylist(), types.to_pylist(), strict=True)
    distinct = [
        Operator(word[:LONGEST_NAME], torch_texts.shapes_in(size), torch_texts.types_in(dtypes))
        for word, size, dtypes in words
    ]
    return distinct, of_text, called[of_text] | np.asarray(digits.is_valid()), number


@dataclass(frozen=True, slots=True)
class OperatorRanges:
    """Pushed and popped ranges of operators, by (start, -end) on the axis of all threads; the one around, or -1."""

    text: Rows
    start: Ints
    end: Ints
    parent: Rows

    def texts_around(self, start: Ints, end: Ints) -> Rows:
        """The text of the innermost around each interval, or -1."""
        return lookup(self.text, innermost(self.start, self.end, self.parent, start, end))


def operator_ranges(recording: Recording, axis: ThreadAxis, operators: Operators) -> OperatorRanges:
    """The ranges of operators; of one that was never popped it is not known how long it ran."""
    none = np.empty(0, dtype=np.int64)
    if not operators.distinct:
        return OperatorRanges(none, none, none, none)
    text = recording.ranges.text
    popped = (recording.ranges.kind == PUSH_POP) & ~recording.ranges.open
    rows = np.flatnonzero((operators.of_text[text] >= 0) & popped & axis.ends_here)
    start, end = axis.range_start[rows], axis.range_end[rows]
    return OperatorRanges(text[rows], start, end, parents(start, end)[0])
