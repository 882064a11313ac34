"""Which numbered ranges are functions of autograd nodes that run, and no operators.

An evaluation (``autograd::engine::evaluate_function: MulBackward0``) repeats the node's name inside, and in some traces
only there its number. The node of an operator that changed a view runs the node of that operator inside its own
evaluation (``torch::autograd::CopySlices``): the number of that one is told by the operator. Releases before torch 1.8
wrote no evaluations; there, and where a program calls a node itself, the function alone shows that it runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import parents
from tracekit.arrays.lookups import lookup

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.trace.counters import Numbered

#: The node of an operator that changed a view in place, which runs that operator's node.
_COPY_SLICES = "torch::autograd::CopySlices"
#: What only torch itself calls a node. A function of a user may be called ``ScaleBackward`` and make nodes.
_OF_TORCH = re.compile(r"torch::autograd::.*|\w+Backward\d+")
#: What functions of nodes may be called.
ALONE = re.compile(rf"{_OF_TORCH.pattern}|\w+Backward")


class NodeFunctions(NamedTuple):
    """Functions of nodes among numbered ranges.

    Attributes:
        told_by: For every evaluation the row of the numbered range that tells its number, or -1.
        within: Which numbered ranges are part of an evaluation of their node, or of the node of a view around it.
        alone: Which are functions of nodes that run outside of an evaluation of theirs.
    """

    told_by: Rows
    within: Flags
    alone: Flags


def node_functions(nodes: Numbered, numbered: Numbered, around: Rows, names: list[str]) -> NodeFunctions:
    """Finds the functions of nodes.

    Args:
        nodes: Evaluations of nodes.
        numbered: The other ranges with a number, in the order of their starts.
        around: For each of these the innermost evaluation around it, or -1.
        names: Names by their codes.
    """
    told_by = np.full(nodes.row.size, -1, dtype=np.int64)
    own = lookup(nodes.number, around)
    repeats = (around >= 0) & (lookup(nodes.name, around) == numbered.name)
    repeats = _first_of(repeats & ((own == -1) | (own == numbered.number)), around)
    told_by[around[repeats]] = np.flatnonzero(repeats)
    named = _named(_OF_TORCH if nodes.row.size else ALONE, names)[numbered.name]
    of_views = lookup(np.array([name == _COPY_SLICES for name in names])[nodes.name], around, missing=0).astype(bool)
    changes = _first_of(of_views & ~repeats & _named(ALONE, names)[numbered.name], around)
    told_by[around[changes]] = np.flatnonzero(changes)
    within = repeats | changes
    return NodeFunctions(told_by, within, named & ~within & ~_in_its_like(numbered))


def _named(pattern: re.Pattern[str], names: list[str]) -> Flags:
    return np.array([pattern.fullmatch(name) is not None for name in names], dtype=bool)


def _first_of(which: Flags, around: Rows) -> Flags:
    """Only the first of these in each evaluation."""
    rows = np.flatnonzero(which)
    _, first = np.unique(around[rows], return_index=True)
    only = np.zeros(which.size, dtype=bool)
    only[rows[first]] = True
    return only


def _in_its_like(numbered: Numbered) -> Flags:
    """Which ranges lie directly in one of the same name: a function that calls another of its name is no node."""
    parent, _ = parents(numbered.start, numbered.end)
    return np.asarray(lookup(numbered.name, parent) == numbered.name)
