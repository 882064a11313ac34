"""Which call of the forward pass made the autograd node that launched something, by autograd's sequence numbers.

Where operators are marked, ``aten::addmm, seq = 12, op_id = 7`` tells the number of the node that the operator makes,
and ``autograd::engine::evaluate_function: AddmmBackward0, seq = 12`` that this node runs. Each thread counts for
itself, and several operators may tell the same number: the last of them, before the node runs, made it. What such an
operator made inside another node (a gradient of a gradient) is the work of the call that made that one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped
from tracekit.arrays.intervals import firsts, innermost, parents
from tracekit.arrays.lookups import lookup
from tracekit.markers.operators import EVALUATION
from tracekit.markers.phases import BACKWARD

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.operators import Operators

_NODE_NAME = re.compile(r"(\w*?)Backward\d*")


class _Numbered(NamedTuple):
    """Ranges of operators or of evaluations of nodes, in the order of their starts.

    Attributes:
        start: Start on the axis of all threads.
        end: End on that axis.
        start_ns: Start.
        thread: Row of threads.
        process: Row of processes.
        number: Sequence number; -1 where the text has none.
        name: Code of the name: a node has that of its class.
    """

    start: Ints
    end: Ints
    start_ns: Ints
    thread: Ints
    process: Ints
    number: Ints
    name: Ints

    def at(self, rows: Rows | Flags) -> _Numbered:
        """Some of them."""
        return _Numbered(*(column[rows] for column in self))


def made_by(
    recording: Recording,
    axis: ThreadAxis,
    operators: Operators,
    calls: Calls,
    phase_of_calls: Ints,
    call_at_launch: Rows,
) -> Rows | None:
    """For every launch by an autograd node the call whose operator made the node, or -1; None without such nodes.

    Processes with markers of the backward pass are left out: these tell more.

    Args:
        recording: The recording.
        axis: Its ranges and launches on one axis.
        operators: The operators that its texts name.
        calls: Its calls.
        phase_of_calls: Their phases.
        call_at_launch: For every launch the innermost call around it, or -1.
    """
    marked = phase_of_calls == BACKWARD
    processes = recording.threads.process[integers(recording.ranges, "thread")[calls.range_row[marked]]]
    numbered = _ranges(recording, axis, operators, processes)
    if numbered is None:
        return None
    nodes, operated, names = numbered
    above, _ = parents(nodes.start, nodes.end)
    around = innermost(nodes.start, nodes.end, above, operated.start, operated.end)
    call = innermost(calls.start, calls.end, calls.parent, operated.start, operated.end)
    # Inside its evaluation, torch repeats a node's name, and in some traces only there its number.
    repeats = (around >= 0) & (lookup(nodes.name, around) == operated.name)
    number = nodes.number.copy()
    untold = repeats & (lookup(number, around) < 0)
    number[around[untold]] = operated.number[untold]
    nodes, makers = nodes._replace(number=number), operated.at(~repeats)
    around, call = around[~repeats], call[~repeats]
    inside = (around >= 0) & (lookup(nodes.start, around) >= lookup(calls.start, call))
    maker = _makers(nodes, makers, names)
    owner = np.where(lookup(inside, maker, missing=True), -1, lookup(call, maker))
    owner = owner[firsts(np.where(lookup(inside, maker, missing=False), lookup(around, maker), -1))]
    # Modules run again inside a node do so for a checkpoint: what else runs there is not the node's alone.
    again = innermost(nodes.start, nodes.end, above, calls.start, calls.end)
    owner[again[again >= 0]] = -1
    launcher = innermost(nodes.start, nodes.end, above, axis.launch_start, axis.launch_end)
    own = lookup(nodes.start, launcher) >= lookup(calls.start, call_at_launch)
    return np.where((launcher >= 0) & own, lookup(owner, launcher), -1)


def _ranges(
    recording: Recording, axis: ThreadAxis, operators: Operators, without: Ints
) -> tuple[_Numbered, _Numbered, list[str]] | None:
    """Evaluations of nodes, operators with numbers, and their names; None if there are not both."""
    nodes = [operator.name.startswith(EVALUATION) for operator in operators.distinct]
    if not any(nodes):
        return None
    names: dict[str, int] = {}
    codes = [names.setdefault(item.name.removeprefix(EVALUATION), len(names)) for item in operators.distinct]
    evaluation = np.array([*nodes, False])[operators.of_text]
    code = np.array([*codes, -1])[operators.of_text]
    number = operators.number
    text, thread = integers(recording.ranges, "text"), integers(recording.ranges, "thread")
    process = recording.threads.process[thread]
    of_use = (evaluation | (number >= 0))[text] & axis.ends_here & ~np.isin(process, without)
    rows = np.flatnonzero(of_use)
    text = text[rows]
    columns = axis.range_start, axis.range_end, integers(recording.ranges, "start_ns"), thread, process
    start, end, start_ns, thread, process = (column[rows] for column in columns)
    numbered = _Numbered(start, end, start_ns, thread, process, number[text], code[text])
    evaluates = evaluation[text]
    if evaluates.all() or not evaluates.any():
        return None
    return numbered.at(evaluates), numbered.at(~evaluates), list(names)


def _makers(nodes: _Numbered, operators: _Numbered, names: list[str]) -> Rows:
    """For every node the operator that made it: the last one with its number on the only thread that has one; or -1.

    Where several threads have one, it is that of the only thread on which it has the name of the node.
    """
    both = [np.concatenate(pair) for pair in zip(nodes, operators, strict=True)]
    start_ns, thread, process, number = both[2:6]
    counter = grouped((process, number)).group
    _, time = np.unique(start_ns, return_inverse=True)
    order = np.lexsort((time, thread, counter))
    order = order[order >= nodes.number.size]
    sequence = grouped((counter[order], thread[order]))
    key = sequence.group * (int(time.max(initial=0)) + 1) + time[order]
    # The sequences of one counter follow each other: one for each thread.
    first = np.searchsorted(counter[order][sequence.first], np.arange(counter.max(initial=0) + 2))
    of_node = counter[: nodes.number.size]
    many = np.where(nodes.number >= 0, first[of_node + 1] - first[of_node], 0)
    node = np.repeat(np.arange(many.size), many)
    chosen = first[of_node][node] + np.arange(node.size) - np.repeat(np.cumsum(many) - many, many)
    before = np.searchsorted(key, chosen * (int(time.max(initial=0)) + 1) + time[: many.size][node]) - 1
    valid = (before >= 0) & (lookup(sequence.group, before) == chosen)
    node, operator = node[valid], order[before[valid]] - many.size
    doubtful = counts(node, many.size)[node] > 1
    fits = ~doubtful
    fits[doubtful] = _fit(nodes.name[node[doubtful]], operators.name[operator[doubtful]], names)
    node, operator = node[fits], operator[fits]
    maker = np.full(many.size, -1, dtype=np.int64)
    alone = counts(node, many.size)[node] == 1
    maker[node[alone]] = operator[alone]
    return maker


def _fit(node: Ints, operator: Ints, names: list[str]) -> Flags:
    """Whether nodes have the names of operators: ``NativeLayerNormBackward0`` that of ``aten::native_layer_norm``."""
    pairs, pair = np.unique(np.stack((node, operator)), axis=1, return_inverse=True)
    fit = [_plain_node(names[one]) == _plain_operator(names[other]) for one, other in pairs.T.tolist()]
    of_pairs: Flags = np.array(fit, dtype=bool)[pair.reshape(-1)]
    return of_pairs


def _plain_node(name: str) -> str | None:
    match = _NODE_NAME.fullmatch(name)
    return match[1].lower().replace("_", "") if match else None


def _plain_operator(name: str) -> str:
    return name.rpartition("::")[2].lower().replace("_", "")
