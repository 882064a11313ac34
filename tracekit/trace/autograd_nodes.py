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
from tracekit.arrays.intervals import innermost, nesting_order, parents
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
        until: Where it is only known that the node was made since that operator began: until when on the axis; else -1.
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
    until: Ints
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
    numbered = _numbered(recording, axis, rows, operators.number, np.array([*codes, -1])[operators.of_text])
    nodes, operated = _nodes_and_operators(numbered, evaluation[text[rows]], list(names))
    return None if not nodes.row.size or not operated.row.size else _with_makers(nodes, operated, list(names))


def _nodes_and_operators(numbered: Numbered, evaluates: Flags, names: list[str]) -> tuple[Numbered, Numbered]:
    """The nodes that run, each with the number that identifies who made it; and the operators that make nodes."""
    nodes, others = numbered.at(evaluates), numbered.at(~evaluates)
    around = innermost(nodes.start, nodes.end, parents(nodes.start, nodes.end)[0], others.start, others.end)
    functions = node_functions(nodes, others, around, names)
    numbered_too = functions.numbered_by >= 0
    row = functions.numbered_by[numbered_too]
    number, forward_thread, name = nodes.number.copy(), nodes.forward_thread.copy(), nodes.name.copy()
    number[numbered_too], name[numbered_too] = others.number[row], others.name[row]
    unknown = forward_thread[numbered_too] == -1
    forward_thread[np.flatnonzero(numbered_too)[unknown]] = others.forward_thread[row[unknown]]
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
    process = recording.threads.process[recording.ranges.thread]
    backward = [isinstance(marker, ModuleMarker) and marker.phase == "backward" for marker in decoded.bare]
    if not any(backward):
        return np.zeros(process.size, dtype=bool)
    marker = np.append(decoded.of_text, -1)[recording.ranges.text]
    return np.isin(process, process[np.array([*backward, False])[decoded.canonical_marker[marker]]])


def _numbered(recording: Recording, axis: ThreadAxis, rows: Rows, number: Ints, name: Ints) -> Numbered:
    ranges = recording.ranges
    text, thread = ranges.text[rows], ranges.thread[rows]
    return Numbered(
        row=rows,
        start=axis.range_start[rows],
        end=axis.range_end[rows],
        start_ns=ranges.start_ns[rows],
        thread=thread,
        process=recording.threads.process[thread],
        forward_thread=ranges.forward_thread[rows],
        number=number[text],
        name=name[text],
    )


#: How the names of nodes begin that custom operators in C++ make, and those of operators that make none of these.
_CUSTOM = "torch::autograd::CppNode<"
_OF_TORCH = ("aten::", "prims::")
#: Nodes of views that were made again, whenever something asked for them, after their tensor had changed.
_OF_VIEWS = "AsStridedBackward", "torch::autograd::CopySlices"


class NodeCreators(NamedTuple):
    """Who made nodes.

    Attributes:
        operator: For every node the row of the operator that made it, or -1.
        until: Where it is only known that the node was made since that operator began: when on the axis the next one
            of its counter began; else -1.
        ambiguous: Which nodes have a number that fits several operators.
    """

    operator: Rows
    until: Ints
    ambiguous: Flags


class _Pairs(NamedTuple):
    node: Rows
    operator: Rows

    def at(self, which: Flags) -> _Pairs:
        """Some of them."""
        return _Pairs(self.node[which], self.operator[which])


class _Known(NamedTuple):
    """What is known about counters and names before nodes are looked at."""

    counters: Counters
    reach: CandidateCounters
    plain: Plain


def makers(nodes: Numbered, operators: Numbered, around: Rows, names: list[str]) -> NodeCreators:
    """For every node the operator with a number that made it; ``around`` is the evaluation around each operator.

    If there are several, it is the one that ran in an evaluation around the node or, without, the only one of its name.
    """
    size = nodes.number.size
    known = _Known(counters := counters_of(operators), candidate_counters(nodes, counters), plain_names(names))
    pairs = _candidates(nodes, operators, counters.of_operator)
    made_on = nodes.forward_thread[pairs.node]
    pairs = pairs.at((made_on == -1) | (made_on == operators.thread[pairs.operator]))
    found = counts(pairs.node, size) > 0
    pairs = _certain(nodes, operators, pairs, known, around)
    operator = np.full(size, -1, dtype=np.int64)
    operator[pairs.node] = pairs.operator
    ambiguous = found & (operator < 0)
    custom = np.flatnonzero((operator >= 0) & begins(names, _CUSTOM)[nodes.name])
    if custom.size:
        operator[custom] = _custom_makers(operators, operator[custom], names)
    view = begins(names, *_OF_VIEWS)[nodes.name]
    doubtful = pairs.node[view[pairs.node] & ~known.plain.fit(nodes.name[pairs.node], operators.name[pairs.operator])]
    unnumbered = ~found & (nodes.number >= 0) & (nodes.forward_thread >= -1) & known.reach.by_one
    rows = np.union1d(doubtful, np.flatnonzero(unnumbered))
    operator, until = _made_between(nodes, operators, known, operator, rows)
    # Who made other nodes than those of views is known at once, or not at all.
    return NodeCreators(np.where(view | (until < 0), operator, -1), np.where(view, until, -1), ambiguous)


def _certain(nodes: Numbered, operators: Numbered, pairs: _Pairs, known: _Known, around: Rows) -> _Pairs:
    size = nodes.number.size
    near = _inside_one_evaluation(pairs, nodes, lookup(around, pairs.operator))
    is_near = np.bincount(pairs.node[near], minlength=size) > 0
    pairs = pairs.at(near | ~is_near[pairs.node])
    alone = (counts(pairs.node, size) == 1) & (is_near | (known.reach.below <= 1))
    fit = known.plain.fit(nodes.name[pairs.node], operators.name[pairs.operator])
    # Operators of this name may make nodes of numbers that none records, on other threads, too.
    spread = np.isin(known.plain.node, known.plain.operator[operators.name][known.plain.spreads[operators.name]])
    fit &= (is_near | ~spread[nodes.name] | (known.reach.below <= 1))[pairs.node]
    pairs = pairs.at((alone[pairs.node] | fit) & (is_near | ~known.reach.above)[pairs.node])
    return pairs.at(counts(pairs.node, size)[pairs.node] == 1)


def _custom_makers(operators: Numbered, last: Rows, names: list[str]) -> Rows:
    """The custom operators that made nodes in C++: those around the last operators with their numbers, or -1.

    No operator is recorded for such a node. It is made while a custom one runs, which may run others before.
    """
    parent, _ = parents(operators.start, operators.end)
    at = last.copy()
    while (climbs := (parent[at] >= 0) & (operators.number[parent[at]] == operators.number[at])).any():
        at[climbs] = parent[at[climbs]]
    of_torch = np.array([name.startswith(_OF_TORCH) for name in names])
    return np.where(of_torch[operators.name[at]], -1, at)


def _candidates(nodes: Numbered, operators: Numbered, counter: Ints) -> _Pairs:
    """For every node, of each counter of its process the last operator with its number that began before it."""
    size = nodes.number.size
    keys = grouped([np.concatenate((getattr(nodes, name), getattr(operators, name))) for name in ("process", "number")])
    key, wanted = keys.group[size:], keys.group[:size]
    _, time = np.unique(np.concatenate((nodes.start_ns, operators.start_ns)), return_inverse=True)
    order = np.lexsort((operators.start, time[size:], counter, key))
    # Operators of one counter with one number follow each other, and such sequences by number.
    sequences = grouped((key[order], counter[order]))
    first = np.searchsorted(key[order][sequences.first], np.arange(keys.first.size + 1))
    many = np.where(nodes.number >= 0, first[wanted + 1] - first[wanted], 0)
    node = np.repeat(np.arange(size), many)
    chosen = first[wanted][node] + np.arange(node.size) - np.repeat(np.cumsum(many) - many, many)
    span = int(time.max(initial=0)) + 1
    last = np.searchsorted(sequences.group * span + time[size:][order], chosen * span + time[:size][node]) - 1
    valid = (last >= 0) & (lookup(sequences.group, last) == chosen)
    return _Pairs(node[valid], order[last[valid]])


def _inside_one_evaluation(pairs: _Pairs, nodes: Numbered, around: Rows) -> Flags:
    begins = lookup(nodes.start, around) <= nodes.start[pairs.node]
    return np.asarray((around >= 0) & begins & (lookup(nodes.end, around) >= nodes.end[pairs.node]))


def _made_between(nodes: Numbered, operators: Numbered, known: _Known, operator: Rows, rows: Rows) -> tuple[Rows, Ints]:
    """Operators since whose beginning nodes were made, and the beginning of the next one of the counter.

    An operator with the node's name made it itself, as a user's function or one of several tensors does.
    """
    counters = known.counters
    until = np.full(operator.size, -1, dtype=np.int64)
    _, rank = np.unique(np.concatenate((operators.number, nodes.number[rows])), return_inverse=True)
    span = int(rank.max(initial=0)) + 1
    counter = np.where(operator[rows] >= 0, counters.of_operator[operator[rows]], known.reach.counter[rows])
    order = np.lexsort((operators.start, operators.number, counters.of_operator))
    key = (counters.of_operator * span + rank[: operators.number.size])[order]
    at = np.searchsorted(key, counter * span + rank[operators.number.size :], side="right")
    last, following = np.append(order, -1)[at - 1], np.append(order, -1)[at]
    last_fits = lookup(counters.of_operator, last) == counter
    before = last_fits & (operators.start_ns[last] <= nodes.start_ns[rows])
    next_fits = before & (lookup(counters.of_operator, following) == counter)
    own = before & known.plain.fit(nodes.name[rows], operators.name[last])
    operator[rows] = np.where(own | next_fits, last, -1)
    until[rows] = np.where(next_fits & ~own, lookup(operators.start, following), -1)
    return operator, until


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


class Counters(NamedTuple):
    """What counts: threads, each from the start again whenever its numbers fall.

    Attributes:
        of_operator: For every operator the counter that it records.
        least: The least number that it records.
    """

    of_operator: Rows
    process: Ints
    thread: Ints
    least: Ints


class CandidateCounters(NamedTuple):
    """How many counters may have made nodes.

    Attributes:
        below: For every node how many counters of its thread, or where that is unknown of its process, have given its
            number or one below.
        counter: One of them, or -1.
        above: Whether one records only numbers above, and may have made it before the recording began.
    """

    below: Ints
    counter: Rows
    above: Flags

    @property
    def by_one(self) -> Flags:
        """Which nodes only one counter can have made."""
        return np.asarray((self.below == 1) & ~self.above)


def counters_of(operators: Numbered) -> Counters:
    """One counter for each thread, and another one whenever its numbers fall."""
    order = np.lexsort((np.arange(operators.start.size), operators.start, operators.thread))
    thread, number = operators.thread[order], operators.number[order]
    anew = np.ones(order.size, dtype=bool)
    anew[1:] = (thread[1:] != thread[:-1]) | (number[1:] < number[:-1])
    counter = np.empty(order.size, dtype=np.int64)
    counter[order] = np.cumsum(anew) - 1
    first = order[anew]
    return Counters(counter, operators.process[first], operators.thread[first], operators.number[first])


def candidate_counters(nodes: Numbered, counters: Counters) -> CandidateCounters:
    """Which counters may have made nodes: they gave the number, or one below, or began above it."""
    has_thread = nodes.forward_thread >= 0
    below, counter, all_of_place = (np.zeros(nodes.number.size, dtype=np.int64) for _ in range(3))
    _, rank = np.unique(np.concatenate((counters.least, nodes.number)), return_inverse=True)
    least, number = rank[: counters.least.size], rank[counters.least.size :]
    span = int(rank.max(initial=0)) + 1
    for asked, place, places in (
        (~has_thread, nodes.process, counters.process),
        (has_thread, nodes.forward_thread, counters.thread),
    ):
        order = np.lexsort((least, places))
        key = places[order] * span + least[order]
        first, end = (np.searchsorted(key, (place[asked] + more) * span) for more in (0, 1))
        until = np.searchsorted(key, place[asked] * span + number[asked], side="right")
        below[asked], all_of_place[asked] = np.maximum(until - first, 0), end - first
        counter[asked] = np.append(order, -1)[np.where(until > first, first, -1)]
    return CandidateCounters(below, np.where(below > 0, counter, -1), all_of_place > below)


_NODE_NAME = re.compile(r"(?:torch::autograd::)?(\w*?)Backwards?\d*")
#: How the names of operators begin that make a node for each of their tensors, all but one of an unknown number.
_FOREACH = "foreach"


class Plain(NamedTuple):
    """Names without what distinguishes nodes and operators: codes by the codes of names.

    Attributes:
        node: Of nodes: -1 for a name that torch gives to no node.
        spreads: Which operators may make nodes of numbers that none records.
    """

    node: Ints
    operator: Ints
    spreads: Flags

    def fit(self, node: Ints, operator: Ints) -> Flags:
        """Whether nodes have the names of operators: ``TBackward0`` that of ``aten::t``."""
        own = self.node[node]
        return np.asarray((own >= 0) & (own == self.operator[operator]))


def plain_names(names: list[str]) -> Plain:
    """Reads names."""
    codes: dict[str, int] = {}
    called = [_plain_operator(name) for name in names]
    operator = [codes.setdefault(name.removeprefix(_FOREACH), len(codes)) for name in called]
    node = [codes.get(_plain_node(name) or "", -1) for name in names]
    qualified = any("::" in name for name in names)  # releases before 1.3 qualify no operators
    spreads = [
        name.startswith(_FOREACH) or (qualified and "::" not in whole)
        for name, whole in zip(called, names, strict=True)
    ]
    return Plain(np.array(node), np.array(operator), np.array(spreads))


def begins(names: list[str], *prefixes: str) -> Flags:
    """Which names begin with one of the prefixes."""
    return np.array([name.startswith(prefixes) for name in names], dtype=bool)


def _plain_node(name: str) -> str | None:
    match = _NODE_NAME.fullmatch(name)
    return match[1].lower().replace("_", "") if match else None


def _plain_operator(name: str) -> str:
    """As torch names nodes: ``NllLossBackward0`` is that of ``aten::nll_loss_forward``."""
    return name.rpartition("::")[2].lower().replace("_", "").removesuffix("forward")


#: The node of an operator that changed a view in place, which runs that operator's node.
_COPY_SLICES = "torch::autograd::CopySlices"
#: What only torch itself calls a node. A function of a user may be called ``ScaleBackward`` and make nodes.
_TORCH_FUNCTION = re.compile(r"torch::autograd::.*|\w+Backward\d+")
#: What functions of nodes may be called.
ALONE = re.compile(rf"{_TORCH_FUNCTION.pattern}|\w+Backward")


class NodeFunctions(NamedTuple):
    """Functions of nodes among numbered ranges.

    Attributes:
        numbered_by: For every evaluation the row of the numbered range that records its number, or -1.
        within: Which numbered ranges are part of an evaluation of their node, or of the node of a view around it.
        alone: Which are functions of nodes that run outside of an evaluation of theirs.
    """

    numbered_by: Rows
    within: Flags
    alone: Flags


def node_functions(nodes: Numbered, numbered: Numbered, around: Rows, names: list[str]) -> NodeFunctions:
    """Finds the functions of nodes."""
    numbered_by = np.full(nodes.row.size, -1, dtype=np.int64)
    own = lookup(nodes.number, around)
    repeats = (around >= 0) & (lookup(nodes.name, around) == numbered.name)
    repeats = _first_of(repeats & ((own == -1) | (own == numbered.number)), around)
    numbered_by[around[repeats]] = np.flatnonzero(repeats)
    named = _named(_TORCH_FUNCTION if nodes.row.size else ALONE, names)[numbered.name]
    of_views = lookup(np.array([name == _COPY_SLICES for name in names])[nodes.name], around, missing=0).astype(bool)
    changes = _first_of(of_views & ~repeats & _named(ALONE, names)[numbered.name], around)
    numbered_by[around[changes]] = np.flatnonzero(changes)
    within = repeats | changes
    return NodeFunctions(numbered_by, within, named & ~within & ~_in_its_like(numbered))


def _named(pattern: re.Pattern[str], names: list[str]) -> Flags:
    return np.array([pattern.fullmatch(name) is not None for name in names], dtype=bool)


def _first_of(which: Flags, around: Rows) -> Flags:
    rows = np.flatnonzero(which)
    _, first = np.unique(around[rows], return_index=True)
    only = np.zeros(which.size, dtype=bool)
    only[rows[first]] = True
    return only


def _in_its_like(numbered: Numbered) -> Flags:
    """Which ranges lie directly in one of the same name: a function that calls another of its name is no node."""
    parent, _ = parents(numbered.start, numbered.end)
    return np.asarray(lookup(numbered.name, parent) == numbered.name)
