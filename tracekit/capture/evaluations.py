"""Evaluations of backward nodes in a trace of Kineto, whose hooks open and close our ranges.

An evaluation begins with the node's hooks. One that opens or closes ranges there lies in the ranges of two modules: it
is the second one's, and the hooks are nobody's. So its rows begin where the node begins.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.capture.rows import IntegerRows

_PREFIX = "autograd::engine::evaluate_function: "
_NEVER = 2**63
#: Times by thread.
Times = dict[int, "array[int]"]


class _Evaluation(NamedTuple):
    """The rows of an evaluation.

    Attributes:
        node: Name of its node.
        operator: Its row among the operators.
        copy: The rows that have a copy of it, and its row there; None if there are none.
    """

    node: str
    operator: int
    copy: tuple[IntegerRows, int] | None


class Evaluations:
    """Collects evaluations and the times at which ranges of ours begin and end."""

    def __init__(self) -> None:
        self._evaluations: list[_Evaluation] = []
        self._changes: Times = {}

    def operator_added(self, name: str, operators: IntegerRows, copies: IntegerRows | None) -> None:
        """Notes the last row of the operators, if it is an evaluation, and the last row of those that copy it."""
        if name.startswith(_PREFIX):
            copy = None if copies is None else (copies, len(copies) - 1)
            self._evaluations.append(_Evaluation(name.removeprefix(_PREFIX), len(operators) - 1, copy))

    def range_added(self, ranges: IntegerRows) -> None:
        """Notes the last row of the ranges, which is one of ours."""
        tid, *times = (ranges.values(name)[-1] for name in ("globalTid", "start", "end"))
        self._changes.setdefault(tid, array("q")).extend(times)

    def begin_with_their_nodes(self, operators: IntegerRows, ids: Mapping[str, int]) -> None:
        """Moves the start of evaluations that begin with hooks of ours to the start of their node.

        Args:
            operators: All operators.
            ids: Their ``nameId`` by name.
        """
        starts = _node_starts(operators, {ids[one.node] for one in self._evaluations if one.node in ids})
        changes = {tid: sorted(times) for tid, times in self._changes.items()}
        for evaluation in self._evaluations:
            row = evaluation.operator
            tid, start, end = (operators.values(name)[row] for name in ("globalTid", "start", "end"))
            node = _next(starts.get((tid, ids.get(evaluation.node, -1)), ()), start)
            if _next(changes.get(tid, ()), start) < node <= end:
                operators.replace(row, "start", node)
                if evaluation.copy is not None:
                    rows, copy = evaluation.copy
                    rows.replace(copy, "start", node)


def _node_starts(operators: IntegerRows, names: set[int]) -> dict[tuple[int, int], list[int]]:
    """When nodes of some names begin, sorted, by thread and name."""
    starts: dict[tuple[int, int], list[int]] = {}
    columns = (operators.values(name) for name in ("globalTid", "nameId", "start"))
    for tid, name, start in zip(*columns, strict=True) if names else ():
        if name in names:
            starts.setdefault((tid, name), []).append(start)
    for times in starts.values():
        times.sort()
    return starts


def _next(times: Sequence[int], start: int) -> int:
    """The first of some sorted times from a start on; later than all times if there is none."""
    at = bisect_left(times, start)
    return times[at] if at < len(times) else _NEVER
