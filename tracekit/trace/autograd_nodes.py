"""Which operator of the forward pass made each node of autograd that ran, by autograd's sequence numbers.

Where operators are marked, ``aten::addmm, seq = 12, op_id = 7`` tells the number of the node that the operator makes,
and ``autograd::engine::evaluate_function: AddmmBackward0, seq = 12`` that this node runs. Each thread counts for
itself, and several operators may tell the same number: the last of them, before the node runs, made it. Some nodes have
a number that no operator tells: they were made between two that do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, nesting_order, parents
from tracekit.arrays.lookups import lookup
from tracekit.markers.base import ModuleMarker
from tracekit.markers.operators import EVALUATION
from tracekit.trace.counters import Numbered
from tracekit.trace.node_functions import ALONE, node_functions
from tracekit.trace.sequence_numbers import makers

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.operators import Operators


class AutogradNodes(NamedTuple):
    """Evaluations of nodes of autograd, by (start, -end) on the axis of all threads.

    Attributes:
        row: Row of the recording's ranges.
        start: Start on the axis.
        end: End on it.
        parent: The one around each, or -1.
        maker: Row of the operator that made the node, among the recording's ranges, or -1.
        maker_start: Start of that operator on the axis, or -1.
        maker_end: Its end, or -1.
        inside: The evaluation that the operator ran in, or -1.
        until: Where it is only known that the node was made since that operator began: until when on the axis; else -1.
        numbered: Which have a number. What accumulates gradients has none.
        ambiguous: Which have a number that several operators may have given, so that none is known.
    """

    row: Rows
    start: Ints
    end: Ints
    parent: Rows
    maker: Rows
    maker_start: Ints
    maker_end: Ints
    inside: Rows
    until: Ints
    numbered: Flags
    ambiguous: Flags

    def around(self, start: Ints, end: Ints) -> Rows:
        """The innermost around each interval of the axis, or -1."""
        return innermost(self.start, self.end, self.parent, start, end)


def autograd_nodes(
    recording: Recording, axis: ThreadAxis, operators: Operators, decoded: Decoded
) -> AutogradNodes | None:
    """The nodes of autograd that ran, and who made them; None if nothing tells it.

    Processes with markers of the backward pass are left out: these tell more.

    Args:
        recording: The recording.
        axis: Its ranges on one axis.
        operators: The operators that its texts name.
        decoded: Its markers.
    """
    evaluations = [operator.name.startswith(EVALUATION) for operator in operators.distinct]
    if not any(evaluations) and not any(ALONE.fullmatch(operator.name) for operator in operators.distinct):
        return None
    names: dict[str, int] = {}
    codes = [names.setdefault(item.name.removeprefix(EVALUATION), len(names)) for item in operators.distinct]
    evaluation = np.array([*evaluations, False])[operators.of_text]
    text = integers(recording.ranges, "text")
    of_use = (evaluation | (operators.number >= 0))[text] & axis.ends_here & ~_in_marked_process(recording, decoded)
    rows = np.flatnonzero(of_use)
    numbered = _numbered(recording, axis, rows, operators.number, np.array([*codes, -1])[operators.of_text])
    nodes, operated = _told_apart(numbered, evaluation[text[rows]], list(names))
    if not nodes.row.size or not operated.row.size:
        return None
    return _with_makers(nodes, operated, list(names))


def _told_apart(numbered: Numbered, evaluates: Flags, names: list[str]) -> tuple[Numbered, Numbered]:
    """The nodes that run, each with the number that tells who made it; and the operators that make nodes."""
    nodes, others = numbered.at(evaluates), numbered.at(~evaluates)
    around = innermost(nodes.start, nodes.end, parents(nodes.start, nodes.end)[0], others.start, others.end)
    functions = node_functions(nodes, others, around, names)
    told = functions.told_by >= 0
    row = functions.told_by[told]
    number, forward_thread, name = nodes.number.copy(), nodes.forward_thread.copy(), nodes.name.copy()
    number[told], name[told] = others.number[row], others.name[row]
    untold = forward_thread[told] == -1
    forward_thread[np.flatnonzero(told)[untold]] = others.forward_thread[row[untold]]
    nodes = nodes._replace(number=number, forward_thread=forward_thread, name=name)
    if functions.alone.any():
        columns = zip(nodes, others.at(functions.alone), strict=True)
        nodes = Numbered(*(np.concatenate(pair) for pair in columns))
        nodes = nodes.at(nesting_order(nodes.start, nodes.end))
    return nodes, others.at(~functions.within & ~functions.alone)


def _with_makers(nodes: Numbered, operated: Numbered, names: list[str]) -> AutogradNodes:
    above, _ = parents(nodes.start, nodes.end)
    around = innermost(nodes.start, nodes.end, above, operated.start, operated.end)
    made = makers(nodes, operated, around, names)
    start, inside = lookup(operated.start, made.operator), lookup(around, made.operator)
    # What was made before the evaluation ended in which it began, and before any other one, was made there.
    began = np.searchsorted(nodes.start, start) == np.searchsorted(nodes.start, made.until)
    certain = (made.until < 0) | (began & ((inside < 0) | (lookup(nodes.end, inside) > made.until)))
    operator = np.where(certain, made.operator, -1)
    return AutogradNodes(
        row=nodes.row,
        start=nodes.start,
        end=nodes.end,
        parent=above,
        maker=lookup(operated.row, operator),
        maker_start=lookup(operated.start, operator),
        maker_end=lookup(operated.end, operator),
        inside=np.where(certain, inside, -1),
        until=np.where(certain, made.until, -1),
        numbered=nodes.number >= 0,
        ambiguous=made.ambiguous,
    )


def _in_marked_process(recording: Recording, decoded: Decoded) -> Flags:
    """Which ranges are of processes that mark modules of the backward pass."""
    process = recording.threads.process[integers(recording.ranges, "thread")]
    backward = [isinstance(marker, ModuleMarker) and marker.phase == "backward" for marker in decoded.bare]
    if not any(backward):
        return np.zeros(process.size, dtype=bool)
    marker = np.append(decoded.of_text, -1)[integers(recording.ranges, "text")]
    return np.isin(process, process[np.array([*backward, False])[decoded.bare_row[marker]]])


def _numbered(recording: Recording, axis: ThreadAxis, rows: Rows, number: Ints, name: Ints) -> Numbered:
    ranges = recording.ranges
    text, thread = integers(ranges, "text")[rows], integers(ranges, "thread")[rows]
    return Numbered(
        row=rows,
        start=axis.range_start[rows],
        end=axis.range_end[rows],
        start_ns=integers(ranges, "start_ns")[rows],
        thread=thread,
        process=recording.threads.process[thread],
        forward_thread=integers(ranges, "forward_thread")[rows],
        number=number[text],
        name=name[text],
    )
