"""The modules of all stretches as one hierarchy, as their calls would give it together.

A module is the same in all stretches if they say the same of it. Where they do not, only a look at all calls tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.dataset.union import facts_in
from tracekit.readers.stretches.survey import NotCuttable
from tracekit.tables import modules
from tracekit.trace.hierarchy.facts import NOTHING
from tracekit.trace.hierarchy.forests import joined
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.hierarchy.planting import Nodes, trees

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tracekit.arrays.types import Ints
    from tracekit.dataset.stretches.parts import Part
    from tracekit.trace.hierarchy.facts import Facts


class Hierarchy(NamedTuple):
    """The modules of all stretches.

    Attributes:
        table: The table ``modules``.
        module_id: For every stretch the new id of each of its modules.
    """

    table: pa.Table
    module_id: list[Ints]


class _First(NamedTuple):
    """The first call of a module in a process: when it began, and the number of its range in the report."""

    start_ns: int
    range_id: int


def hierarchy_of(parts: Sequence[Part], range_ids: Sequence[Ints]) -> Hierarchy:
    """Joins the modules of all stretches.

    Args:
        parts: The stretches.
        range_ids: For every stretch the number of each of its ranges in the report.

    Raises:
        NotCuttable: If stretches say different things of one module.
    """
    rows = [part.file("modules").read().to_pylist() for part in parts]
    first: dict[tuple[int, str], _First] = {}
    for part, own, ids in zip(parts, rows, range_ids, strict=True):
        for (process, module), at in _first_calls(part, ids).items():
            key = process, own[module]["path"]
            first[key] = min(at, first.get(key, at))
    called = {path for _, path in first}
    described = _described(rows, called)
    paths = [*dict.fromkeys(path for _, path in first)]
    number = {path: row for row, path in enumerate(paths)}
    processes = {process: row for row, process in enumerate(sorted({process for process, _ in first}))}
    nodes = Nodes(
        process=np.array([processes[process] for process, _ in first], dtype=np.int64),
        place=np.array([number[path] for _, path in first], dtype=np.int64),
        which=np.zeros(len(first), dtype=np.int64),
        first_ns=np.array([at.start_ns for at in first.values()], dtype=np.int64),
        first_call=np.array([at.range_id for at in first.values()], dtype=np.int64),
        facts=[(described[path][0], False) for _, path in first],
    )
    joint = joined(trees(nodes, paths, [()]).roots)
    table = modules.table_of(
        [
            Module(
                one.path,
                one.name,
                one.kind,
                one.parent,
                one.facts,
                described.get(one.path, _UNSAID)[1],
                one.subtree_end,
            )
            for one in joint
        ]
    )
    row = {one.path: at for at, one in enumerate(joint)}
    if any(one.differs for one in joint) or len(row) < len(joint):
        raise NotCuttable("modules of which processes say different things")
    return Hierarchy(table, [np.array([row[module["path"]] for module in own], dtype=np.int64) for own in rows])


_UNSAID: tuple[Facts, str | None] = (NOTHING, None)


def _described(rows: Sequence[list[dict[str, Any]]], called: set[str]) -> dict[str, tuple[Facts, str | None]]:
    """What all stretches say of each called module, and its path in its markers where that is another."""
    said: dict[str, tuple[Facts, str | None]] = {}
    for row in (row for own in rows for row in own if row["path"] in called):
        facts = facts_in(row, None), row["alias_of"]
        if facts == _UNSAID and said.get(row["path"], _UNSAID) != _UNSAID:
            continue  # here it is only what holds others
        before = said.get(row["path"], _UNSAID)
        if before not in (_UNSAID, facts):
            raise NotCuttable("a module of which different things are said at different times")
        said[row["path"]] = facts
    return said


def _first_calls(part: Part, range_ids: Ints) -> dict[tuple[int, int], _First]:
    """The first call of every module in every process: by process id and row of the stretch's modules."""
    pid, module, start, row = (part.column("calls", name) for name in ("pid", "module_id", "start_ns", "range_id"))
    order = np.lexsort((row, start, module, pid))
    fresh = np.ones(order.size, dtype=bool)
    fresh[1:] = (np.diff(pid[order]) != 0) | (np.diff(module[order]) != 0)
    rows = order[fresh]
    calls = zip(
        pid[rows].tolist(), module[rows].tolist(), start[rows].tolist(), range_ids[row[rows]].tolist(), strict=True
    )
    return {(process, of): _First(at, range_id) for process, of, at, range_id in calls}
