"""Which operator of the forward pass made each node of autograd that ran, by autograd's sequence numbers.

If operators are marked, ``aten::addmm, seq = 12, op_id = 7`` records the number of the node that the operator makes,
and ``autograd::engine::evaluate_function: AddmmBackward0, seq = 12`` that this node runs. Each thread counts for
itself, and several operators may give the same number: the last of them, before the node runs, made it. Some nodes have
a number that no operator records: they were made between two that do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, grouped
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers.base import ModuleMarker
from tracekit.markers.torch_texts import EVALUATION
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.decoding import Decoded
from tracekit.trace.operators import Operators


class AutogradNodes(NamedTuple):
    """Evaluations of nodes of autograd, by (start, -end) on the axis of all threads.

    Attributes:
        parent: The one around each, or -1.
        maker: Row of the operator that made the node, among the recording's ranges, or -1.
        maker_start: Start of that operator on the axis, or -1.
        maker_end: Its end, or -1.
        inside: The evaluation that the operator ran in, or -1.
        numbered: Which have a number. What accumulates gradients has none.
        ambiguous: Which have a number that several operators may have given, so that their operator is unknown.
    """

    row: Rows
    start: Ints
    end: Ints
    parent: Rows
    maker: Rows
    maker_start: Ints
    maker_end: Ints
    inside: Rows
    numbered: Flags
    ambiguous: Flags

    def around(self, start: Ints, end: Ints) -> Rows:
        """The innermost around each interval of the axis, or -1."""
        return innermost(self.start, self.end, self.parent, start, end)


def autograd_nodes(
    recording: Recording, axis: ThreadAxis, operators: Operators, decoded: Decoded
) -> AutogradNodes | None:
    """The nodes of autograd that ran, and who made them; None if nothing records it.

    Processes with markers of the backward pass are left out: these record more.
    """
    evaluations = [operator.name.startswith(EVALUATION) for operator in operators.distinct]
    if not any(evaluations) and not any(ALONE.fullmatch(operator.name) for operator in operators.distinct):
        return None
    names: dict[str, int] = {}
    codes = [names.setdefault(item.name.removeprefix(EVALUATION), len(names)) for item in operators.distinct]
    evaluation = np.array([*evaluations, False])[operators.of_text]
    text = recording.ranges.text
    of_use = (evaluation | (operators.number >= 0))[text] & axis.ends_here & ~_in_marked_process(recording, decoded)
    rows = np.flatnonzero(of_use)
    text, thread = text[rows], recording.ranges.thread[rows]
    numbered = Numbered(
        row=rows,
        start=axis.range_start[rows],
        end=axis.range_end[rows],
        start_ns=recording.ranges.start_ns[rows],
        thread=thread,
        process=recording.threads.process[thread],
        forward_thread=recording.ranges.forward_thread[rows],
        number=operators.number[text],
        name=np.array([*codes, -1])[operators.of_text][text],
    )
    nodes, operated = _nodes_and_operators(numbered, evaluation[text], list(names))
    if not nodes.row.size or not operated.row.size:
        return None
    above, _ = parents(nodes.start, nodes.end)
    around = innermost(nodes.start, nodes.end, above, operated.start, operated.end)
    maker, ambiguous = _makers(nodes, operated, around, list(names))
    return AutogradNodes(
        row=nodes.row,
        start=nodes.start,
        end=nodes.end,
        parent=above,
        maker=lookup(operated.row, maker),
        maker_start=lookup(operated.start, maker),
        maker_end=lookup(operated.end, maker),
        inside=lookup(around, maker),
        numbered=nodes.number >= 0,
        ambiguous=ambiguous,
    )


def _nodes_and_operators(numbered: Numbered, evaluates: Flags, names: list[str]) -> tuple[Numbered, Numbered]:
    """The nodes that run, each with the number that identifies who made it; and the operators that make nodes."""
    nodes, others = numbered.at(evaluates), numbered.at(~evaluates)
    around = innermost(nodes.start, nodes.end, parents(nodes.start, nodes.end)[0], others.start, others.end)
    numbered_by, within, alone = _node_functions(nodes, others, around, names)
    numbered_too = numbered_by >= 0
    row = numbered_by[numbered_too]
    number, forward_thread, name = nodes.number.copy(), nodes.forward_thread.copy(), nodes.name.copy()
    number[numbered_too], name[numbered_too] = others.number[row], others.name[row]
    unknown = forward_thread[numbered_too] == -1
    forward_thread[np.flatnonzero(numbered_too)[unknown]] = others.forward_thread[row[unknown]]
    nodes = nodes._replace(number=number, forward_thread=forward_thread, name=name)
    if alone.any():
        columns = zip(nodes, others.at(alone), strict=True)
        nodes = Numbered(*(np.concatenate(pair) for pair in columns))
        nodes = nodes.at(nesting_order(nodes.start, nodes.end))
    return nodes, others.at(~within & ~alone)


def _in_marked_process(recording: Recording, decoded: Decoded) -> Flags:
    process = recording.threads.process[recording.ranges.thread]
    backward = [isinstance(marker, ModuleMarker) and marker.phase == "backward" for marker in decoded.bare]
    if not any(backward):
        return np.zeros(process.size, dtype=bool)
    marker = np.append(decoded.of_text, -1)[recording.ranges.text]
    return np.isin(process, process[np.array([*backward, False])[decoded.canonical_marker[marker]]])


#: How the names of nodes begin that custom operators in C++ make, and those of operators that make none of these.
_CUSTOM = "torch::autograd::CppNode<"
_OF_TORCH = ("aten::", "prims::")
#: Nodes of views that were made again, whenever something asked for them, after their tensor had changed.
_OF_VIEWS = "AsStridedBackward", "torch::autograd::CopySlices"


class _Pairs(NamedTuple):
    node: Rows
    operator: Rows

    def at(self, which: Flags) -> _Pairs:
        """Some of them."""
        return _Pairs(self.node[which], self.operator[which])


class _Known(NamedTuple):
    """What is known about counters and names. What counts are threads, from the start again when their numbers fall.

    Attributes:
        counter: For every operator the counter that its number is of.
        below: For every node how many counters of its thread, or where that is unknown of its process, have given its
            number or one below.
        one: One of them, or -1.
        above: Whether one records only numbers above, and may have made it before the recording began.
        node_name: For every node a number for the name of operators that make such nodes; -1 if torch gives it to none.
        operator_name: For every operator the number for its name.
        spreads: Which operators may make nodes of numbers that none records.
    """

    counter: Rows
    below: Ints
    one: Rows
    above: Flags
    node_name: Ints
    operator_name: Ints
    spreads: Flags

    def fit(self, node: Rows, operator: Rows) -> Flags:
        """Whether nodes have the names of operators: ``TBackward0`` that of ``aten::t``."""
        own = self.node_name[node]
        return np.asarray((own >= 0) & (own == self.operator_name[operator]))


_NODE_NAME = re.compile(r"(?:torch::autograd::)?(\w*?)Backwards?\d*")
#: How the names of operators begin that make a node for each of their tensors, all but one of an unknown number.
_FOREACH = "foreach"


def _known(nodes: Numbered, operators: Numbered, names: list[str]) -> _Known:
    order = np.lexsort((np.arange(operators.start.size), operators.start, operators.thread))
    thread, number = operators.thread[order], operators.number[order]
    anew = np.ones(order.size, dtype=bool)
    anew[1:] = (thread[1:] != thread[:-1]) | (number[1:] < number[:-1])
    counter = np.empty(order.size, dtype=np.int64)
    counter[order] = np.cumsum(anew) - 1
    # As torch makes one name of the other: ``NllLossBackward0`` is the node of ``aten::nll_loss_forward``.
    codes: dict[str, int] = {}
    called = [name.rpartition("::")[2].lower().replace("_", "").removesuffix("forward") for name in names]
    operator = [codes.setdefault(name.removeprefix(_FOREACH), len(codes)) for name in called]
    matches = map(_NODE_NAME.fullmatch, names)
    node = [codes.get(match[1].lower().replace("_", ""), -1) if match and match[1] else -1 for match in matches]
    qualified = any("::" in name for name in names)  # releases before 1.3 qualify no operators
    spreads = [
        name.startswith(_FOREACH) or (qualified and "::" not in whole)
        for name, whole in zip(called, names, strict=True)
    ]
    of_names = np.array(node)[nodes.name], np.array(operator)[operators.name], np.array(spreads)[operators.name]
    return _Known(counter, *_reach(nodes, operators.at(order[anew])), *of_names)


def _reach(nodes: Numbered, firsts: Numbered) -> tuple[Ints, Rows, Flags]:
    """The counters that may have made nodes, given the first operator of each: they gave the number, or one below.

    How many they are, one of them, and whether others began above the number.
    """
    has_thread = nodes.forward_thread >= 0
    below, counter, all_of_place = (np.zeros(nodes.number.size, dtype=np.int64) for _ in range(3))
    _, rank = np.unique(np.concatenate((firsts.number, nodes.number)), return_inverse=True)
    least, number = rank[: firsts.number.size], rank[firsts.number.size :]
    span = int(rank.max(initial=0)) + 1
    for asked, place, places in (
        (~has_thread, nodes.process, firsts.process),
        (has_thread, nodes.forward_thread, firsts.thread),
    ):
        order = np.lexsort((least, places))
        key = places[order] * span + least[order]
        first, end = (np.searchsorted(key, (place[asked] + more) * span) for more in (0, 1))
        until = np.searchsorted(key, place[asked] * span + number[asked], side="right")
        below[asked], all_of_place[asked] = np.maximum(until - first, 0), end - first
        counter[asked] = np.append(order, -1)[np.where(until > first, first, -1)]
    return below, np.where(below > 0, counter, -1), all_of_place > below


def _makers(nodes: Numbered, operators: Numbered, around: Rows, names: list[str]) -> tuple[Rows, Flags]:
    """For every node the operator with a number that made it, or -1; ``around`` is the evaluation around each operator.

    If there are several, it is the one that ran in an evaluation around the node or, without, the only one of its name.
    Second, which nodes have a number that fits several operators.
    """
    size = nodes.number.size
    known = _known(nodes, operators, names)
    pairs = _candidates(nodes, operators, known.counter)
    made_on = nodes.forward_thread[pairs.node]
    pairs = pairs.at((made_on == -1) | (made_on == operators.thread[pairs.operator]))
    found = counts(pairs.node, size) > 0
    pairs = _certain(nodes, pairs, known, around)
    operator = np.full(size, -1, dtype=np.int64)
    operator[pairs.node] = pairs.operator
    ambiguous = found & (operator < 0)
    custom = np.flatnonzero((operator >= 0) & _begin(names, _CUSTOM)[nodes.name])
    if custom.size:
        operator[custom] = _custom_makers(operators, operator[custom], names)
    of_view = _begin(names, *_OF_VIEWS)[nodes.name[pairs.node]]
    operator[pairs.node[of_view & ~known.fit(pairs.node, pairs.operator)]] = -1
    unnumbered = ~found & (nodes.number >= 0) & (nodes.forward_thread >= -1)
    unnumbered &= (known.below == 1) & ~known.above
    rows = np.flatnonzero(unnumbered)
    operator[rows] = _of_their_names(nodes, operators, known, rows)
    return operator, ambiguous


def _certain(nodes: Numbered, pairs: _Pairs, known: _Known, around: Rows) -> _Pairs:
    size = nodes.number.size
    outer = lookup(around, pairs.operator)
    near = (outer >= 0) & (lookup(nodes.start, outer) <= nodes.start[pairs.node])
    near &= lookup(nodes.end, outer) >= nodes.end[pairs.node]
    is_near = np.bincount(pairs.node[near], minlength=size) > 0
    pairs = pairs.at(near | ~is_near[pairs.node])
    alone = (counts(pairs.node, size) == 1) & (is_near | (known.below <= 1))
    fit = known.fit(pairs.node, pairs.operator)
    # Operators of this name may make nodes of numbers that none records, on other threads, too.
    spread = np.isin(known.node_name, known.operator_name[known.spreads])
    fit &= (is_near | ~spread | (known.below <= 1))[pairs.node]
    pairs = pairs.at((alone[pairs.node] | fit) & (is_near | ~known.above)[pairs.node])
    return pairs.at(counts(pairs.node, size)[pairs.node] == 1)


def _custom_makers(operators: Numbered, last: Rows, names: list[str]) -> Rows:
    """The custom operators that made nodes in C++: those around the last operators with their numbers, or -1.

    No operator is recorded for such a node. It is made while a custom one runs, which may run others before.
    """
    parent, _ = parents(operators.start, operators.end)
    at = last.copy()
    while (climbs := (parent[at] >= 0) & (operators.number[parent[at]] == operators.number[at])).any():
        at[climbs] = parent[at[climbs]]
    return np.where(_begin(names, *_OF_TORCH)[operators.name[at]], -1, at)


def _candidates(nodes: Numbered, operators: Numbered, counter: Ints) -> _Pairs:
    """For every node, of each counter of its process the last operator with its number that began before it."""
    size = nodes.number.size
    keys = grouped([np.concatenate((getattr(nodes, name), getattr(operators, name))) for name in ("process", "number")])
    key, wanted = keys.group[size:], keys.group[:size]
    order = np.lexsort((operators.start, operators.start_ns, counter, key))
    # Operators of one counter with one number follow each other, and such sequences by number.
    sequences = grouped((key[order], counter[order]))
    first = np.searchsorted(key[order][sequences.first], np.arange(keys.first.size + 1))
    many = np.where(nodes.number >= 0, first[wanted + 1] - first[wanted], 0)
    node = np.repeat(np.arange(size), many)
    chosen = first[wanted][node] + np.arange(node.size) - np.repeat(np.cumsum(many) - many, many)
    began, asked = one_axis([sequences.group, chosen], [operators.start_ns[order], nodes.start_ns[node]])
    last = np.searchsorted(began, asked) - 1
    valid = (last >= 0) & (lookup(sequences.group, last) == chosen)
    return _Pairs(node[valid], order[last[valid]])


def _of_their_names(nodes: Numbered, operators: Numbered, known: _Known, rows: Rows) -> Rows:
    """For nodes whose numbers no operator records the last one before that number, if it has the node's name; or -1.

    A user's function makes such nodes, and an operator of several tensors.
    """
    counter = known.one[rows]
    made, wanted = one_axis([known.counter, counter], [operators.number, nodes.number[rows]])
    order = np.lexsort((operators.start, made))
    last = order[np.searchsorted(made[order], wanted, side="right") - 1]
    own = (known.counter[last] == counter) & (operators.start_ns[last] <= nodes.start_ns[rows])
    return np.where(own & known.fit(rows, last), last, -1)


class Numbered(NamedTuple):
    """Ranges of operators or of evaluations of nodes, in the order of their starts.

    Attributes:
        forward_thread: Row of threads on which a node was made; -1 if that is not recorded.
        number: Sequence number; -1 where the text has none.
    """

    row: Rows
    start: Ints
    end: Ints
    start_ns: Ints
    thread: Ints
    process: Ints
    forward_thread: Ints
    number: Ints
    name: Ints

    def at(self, rows: Rows | Flags) -> Numbered:
        """Some of them."""
        return Numbered(*(column[rows] for column in self))


def _begin(names: list[str], *prefixes: str) -> Flags:
    return np.array([name.startswith(prefixes) for name in names], dtype=bool)


#: The node of an operator that changed a view in place, which runs that operator's node.
_COPY_SLICES = "torch::autograd::CopySlices"
#: What only torch itself calls a node. A function of a user may be called ``ScaleBackward`` and make nodes.
_TORCH_FUNCTION = re.compile(r"torch::autograd::.*|\w+Backward\d+")
#: What functions of nodes may be called.
ALONE = re.compile(rf"{_TORCH_FUNCTION.pattern}|\w+Backward")


def _node_functions(nodes: Numbered, numbered: Numbered, around: Rows, names: list[str]) -> tuple[Rows, Flags, Flags]:
    """For every evaluation the row of the numbered range that records its number, or -1.

    Also which numbered ranges are part of an evaluation of their node, or of the node of a view around it; and which
    are functions of nodes that run outside of an evaluation of theirs.
    """
    numbered_by = np.full(nodes.row.size, -1, dtype=np.int64)
    own = lookup(nodes.number, around)
    repeats = (around >= 0) & (lookup(nodes.name, around) == numbered.name)
    repeats = _first_of(repeats & ((own == -1) | (own == numbered.number)), around)
    numbered_by[around[repeats]] = np.flatnonzero(repeats)
    named = _named(_TORCH_FUNCTION if nodes.row.size else ALONE, names)[numbered.name]
    of_views = lookup(_begin(names, _COPY_SLICES)[nodes.name], around, missing=False)
    changes = _first_of(of_views & ~repeats & _named(ALONE, names)[numbered.name], around)
    numbered_by[around[changes]] = np.flatnonzero(changes)
    within = repeats | changes
    # A function that calls another of its name is no node.
    parent, _ = parents(numbered.start, numbered.end)
    return numbered_by, within, named & ~within & (lookup(numbered.name, parent) != numbered.name)


def _named(pattern: re.Pattern[str], names: list[str]) -> Flags:
    return np.array([pattern.fullmatch(name) is not None for name in names], dtype=bool)


def _first_of(which: Flags, around: Rows) -> Flags:
    rows = np.flatnonzero(which)
    _, first = np.unique(around[rows], return_index=True)
    only = np.zeros(which.size, dtype=bool)
    only[rows[first]] = True
    return only
