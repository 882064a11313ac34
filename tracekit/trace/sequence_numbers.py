"""Sequence numbers of autograd: which operator gave a node its number, and where that is not certain.

Every thread counts by itself, and a thread that begins anew (with the id of an earlier one) counts anew. So a node that
does not tell its thread may be of any counter of its process: of one that told the number, or of one that was past it
when the recording began. One inside the same evaluation is the node's: a pass within a pass runs what it just made.

A counter may have made nodes whose number it never told: what changes a view makes three, and the node of a user's
function comes after those of its inputs. So where there are several counters, an operator that tells the number made
the node only if the names fit, and where there is one, nodes without an operator were made between two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import counts, grouped
from tracekit.arrays.intervals import parents
from tracekit.arrays.lookups import lookup
from tracekit.trace.counters import counters_of, reach_of
from tracekit.trace.node_names import begins, plain_names

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.counters import Counters, Numbered, Reach
    from tracekit.trace.node_names import Plain

#: How the names of nodes begin that custom operators in C++ make, and those of operators that make none of these.
_CUSTOM = "torch::autograd::CppNode<"
_OF_TORCH = ("aten::", "prims::")
#: Nodes of views that were made anew, whenever something asked for them, after their tensor had changed.
_OF_VIEWS = "AsStridedBackward", "torch::autograd::CopySlices"


class Made(NamedTuple):
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
    """Nodes with operators that may have made them."""

    node: Rows
    operator: Rows

    def at(self, which: Flags) -> _Pairs:
        """Some of them."""
        return _Pairs(self.node[which], self.operator[which])


class _Known(NamedTuple):
    """What is known about counters and names before nodes are looked at."""

    counters: Counters
    reach: Reach
    plain: Plain


def makers(nodes: Numbered, operators: Numbered, around: Rows, names: list[str]) -> Made:
    """For every node the operator that made it.

    Of several operators it is the one that ran in an evaluation around the node, else the only one of its name.

    Args:
        nodes: Evaluations of nodes.
        operators: The operators with a number.
        around: For each operator the row of the evaluation around it, or -1.
        names: Names by their codes.
    """
    size = nodes.number.size
    known = _Known(counters := counters_of(operators), reach_of(nodes, counters), plain_names(names))
    pairs = _candidates(nodes, operators, counters.of_operator)
    told = nodes.forward_thread[pairs.node]
    pairs = pairs.at((told == -1) | (told == operators.thread[pairs.operator]))
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
    untold = ~found & (nodes.number >= 0) & (nodes.forward_thread >= -1) & known.reach.by_one
    rows = np.union1d(doubtful, np.flatnonzero(untold))
    operator, until = _made_between(nodes, operators, known, operator, rows)
    # Who made other nodes than those of views is known at once, or not at all.
    return Made(np.where(view | (until < 0), operator, -1), np.where(view, until, -1), ambiguous)


def _certain(nodes: Numbered, operators: Numbered, pairs: _Pairs, known: _Known, around: Rows) -> _Pairs:
    """Of each node the one operator that is certain to have made it.

    Args:
        nodes: The nodes.
        operators: The operators with a number.
        pairs: All that may have, by their numbers.
        known: Counters, how many of them may have made each node, and plain names.
        around: For each operator the row of the evaluation around it, or -1.
    """
    size = nodes.number.size
    near = _inside_one_evaluation(pairs, nodes, lookup(around, pairs.operator))
    is_near = np.bincount(pairs.node[near], minlength=size) > 0
    pairs = pairs.at(near | ~is_near[pairs.node])
    alone = (counts(pairs.node, size) == 1) & (is_near | (known.reach.below <= 1))
    # An operator of another counter may have made the node, too, though it tells a lower number.
    beyond = _spread_over(nodes, operators, known)[pairs.node] - known.plain.spreads[operators.name[pairs.operator]]
    fit = known.plain.fit(nodes.name[pairs.node], operators.name[pairs.operator])
    fit &= is_near[pairs.node] | (beyond <= 0)
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
    """Whether node and operator ran inside of one evaluation, ``around`` the operator."""
    begins = lookup(nodes.start, around) <= nodes.start[pairs.node]
    return np.asarray((around >= 0) & begins & (lookup(nodes.end, around) >= nodes.end[pairs.node]))


def _made_between(nodes: Numbered, operators: Numbered, known: _Known, operator: Rows, rows: Rows) -> tuple[Rows, Ints]:
    """Operators since whose beginning nodes were made, and the beginning of the next one of the counter.

    An operator whose name the node has made it itself, as a user's function or one of several tensors does.

    Args:
        nodes: The nodes.
        operators: The operators with a number.
        known: Counters, how many of them may have made each node, and plain names.
        operator: For every node the operator that made it so far, or -1.
        rows: The nodes that may have been made after an operator.
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


def _spread_over(nodes: Numbered, operators: Numbered, known: _Known) -> Ints:
    """For every node how many operators of its name, of any counter that may be its own, reach its number.

    Operators of users' functions and of several tensors reach up to the next number that their counter tells.
    """
    reaching = np.zeros(nodes.number.size, dtype=np.int64)
    if not (known.reach.below > 1).any():
        return reaching
    counters, plain = known.counters, known.plain
    order = np.lexsort((operators.start, operators.number, counters.of_operator))
    number, counter = operators.number[order], counters.of_operator[order]
    follows = np.append(counter[1:] == counter[:-1], np.False_)
    until = np.where(follows, np.append(number[1:], 0), np.iinfo(np.int64).max)
    rows = np.flatnonzero(plain.spreads[operators.name[order]] & (until > number))
    name, number, until = plain.operator[operators.name[order[rows]]], number[rows], until[rows]
    told = nodes.forward_thread >= 0
    for asked, of_node, of_operator in (
        (~told, nodes.process, operators.process),
        (told, nodes.forward_thread, operators.thread),
    ):
        own, groups = plain.node[nodes.name[asked]], (of_node[asked], of_operator[order[rows]])
        place = grouped((np.concatenate(groups), np.concatenate((own, name)))).group
        for sign, bound in ((1, number), (-1, until)):
            reaching[asked] += sign * _at_most(place, bound, nodes.number[asked])
    return reaching


def _at_most(group: Rows, bounds: Ints, numbers: Ints) -> Ints:
    """How many bounds of the group of each number are not above it; groups are those of numbers, then of bounds."""
    _, rank = np.unique(np.concatenate((numbers, bounds)), return_inverse=True)
    key = group * (int(rank.max(initial=0)) + 1) + rank
    first = group[: numbers.size] * (int(rank.max(initial=0)) + 1)
    bound = np.sort(key[numbers.size :])
    return np.asarray(np.searchsorted(bound, key[: numbers.size], side="right") - np.searchsorted(bound, first))
