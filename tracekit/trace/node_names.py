"""Names of autograd nodes beside those of operators: ``NllLossBackward0`` is made by ``aten::nll_loss_forward``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints

_NODE_NAME = re.compile(r"(?:torch::autograd::)?(\w*?)Backwards?\d*")
#: How the names of operators begin that make a node for each of their tensors, all but one of an untold number.
_FOREACH = "foreach"


class Plain(NamedTuple):
    """Names without what tells nodes and operators apart: codes by the codes of names.

    Attributes:
        node: Of nodes; -1 for a name that torch gives to no node.
        operator: Of operators.
        spreads: Which operators may make nodes of numbers that none tells.
    """

    node: Ints
    operator: Ints
    spreads: Flags

    def fit(self, node: Ints, operator: Ints) -> Flags:
        """Whether nodes have the names of operators: ``TBackward0`` that of ``aten::t``."""
        own = self.node[node]
        return np.asarray((own >= 0) & (own == self.operator[operator]))


def plain_names(names: list[str]) -> Plain:
    """Reads names.

    Args:
        names: Names of nodes and operators, by their codes.
    """
    codes: dict[str, int] = {}
    called = [_plain_operator(name) for name in names]
    operator = [codes.setdefault(name.removeprefix(_FOREACH), len(codes)) for name in called]
    node = [codes.get(_plain_node(name) or "", -1) for name in names]
    spreads = [name.startswith(_FOREACH) or "::" not in whole for name, whole in zip(called, names, strict=True)]
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
