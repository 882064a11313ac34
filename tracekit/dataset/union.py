"""The modules of several reports as one hierarchy: a path is one module, unless reports contradict each other about it.

The order of the reports does not change which modules there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.markers.base import Param
from tracekit.tables import modules
from tracekit.trace.hierarchy.facts import CONTRADICTED, Facts, same
from tracekit.trace.hierarchy.forests import joined
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.hierarchy.places import NAMELESS_ROOT
from tracekit.trace.hierarchy.siblings import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tracekit.arrays.types import Ints
    from tracekit.trace.hierarchy.forests import Joint

_NUMBERED = re.compile(r"(.*)~\d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Union:
    """The modules of several reports.

    Attributes:
        table: The table ``modules`` of all.
        module_id: For every report, the new id of each of its modules by its old one.
        differing: For every report, how many of its modules are described differently by another report, or may be any
            of several modules of it.
        renamed: For every report, the new path of each module whose path changed, by the old one.
    """

    table: pa.Table
    module_id: list[Ints]
    differing: list[int]
    renamed: list[dict[str, str]]


def united(tables: Sequence[pa.Table], contradictory: frozenset[int] = frozenset()) -> Union:
    """The tables ``modules`` of several reports as one, in pre-order, siblings as they stand in the reports.

    Args:
        tables: The tables.
        contradictory: Which of them describe a module in different ways; what such a report does not record may be
            missing because of that, so no other report may fill it in.
    """
    first = tables[0]
    own = np.arange(first.num_rows, dtype=np.int32)
    if all(table.equals(first) for table in tables[1:]):
        return Union(first, [own] * len(tables), [0] * len(tables), [{}] * len(tables))
    rows = [table.to_pylist() for table in tables]
    joint = joined(
        [
            root
            for source, own_rows in enumerate(rows)
            for root in _roots(own_rows, source, CONTRADICTED if source in contradictory else None)
        ]
    )
    ids = [np.zeros(len(own_rows), dtype=np.int32) for own_rows in rows]
    differing = [0] * len(rows)
    renamed: list[dict[str, str]] = [{} for _ in rows]
    for new_id, node in enumerate(joint):
        for tree in _at_odds(node):
            differing[tree.source] += 1
        for tree in node.same:
            ids[tree.source][tree.row] = new_id
            if (old := rows[tree.source][tree.row]["path"]) != node.path:
                renamed[tree.source][old] = node.path
    table = modules.table_of([_module(node, rows) for node in joint])
    return Union(table, ids, differing, renamed)


def _at_odds(joint: Joint) -> list[Tree]:
    """The reports' nodes that describe a module differently than another report, or may be another module."""
    if not joint.differs:
        return []
    descriptions = {tree.facts for tree in joint.same}
    odd = {facts for facts in descriptions if not all(same(facts, other) for other in descriptions)}
    return [tree for tree in joint.same if tree.facts in odd] or joint.same


def _roots(rows: list[dict[str, Any]], source: int, missing: str | None) -> list[Tree]:
    """The modules of one report as trees; a class or settings that it does not record become ``missing``."""
    trees: list[Tree] = []
    roots: list[Tree] = []
    for number, row in enumerate(rows):
        name = _own_name(row["name"], row["alias_of"])
        tree = Tree(name, source, number, facts_in(row, missing), kind=row["kind"])
        trees.append(tree)
        (roots if row["parent_id"] is None else trees[row["parent_id"]].below).append(tree)
    return roots


def _own_name(name: str, alias: str | None) -> str:
    """A module's name without the number that sets it apart from others of its path: markers have the plain name."""
    match = _NUMBERED.fullmatch(name)
    plain = match.group(1) if match else name
    return plain if alias is not None and alias.rpartition(".")[2] == plain else name


def facts_in(row: dict[str, Any], missing: str | None) -> Facts:
    """What a row of ``modules`` states; a class or settings that it does not record become ``missing``."""
    params = (
        Param(param["name"], None if param["shape"] is None else tuple(param["shape"]), param["dtype"])
        for param in row["params"]
    )
    return Facts(row["class_name"] or missing, tuple(params), row["static_params"] or missing)


def _module(joint: Joint, rows: list[list[dict[str, Any]]]) -> Module:
    """A module as all reports describe it; of several aliases the first in alphabetical order."""
    path, place = (path.removeprefix(f"{NAMELESS_ROOT}.") for path in (joint.path, joint.place))
    aliases = {rows[tree.source][tree.row]["alias_of"] for tree in joint.same} - {None, path}
    alias = min(aliases, default=None if path == place else place)
    return Module(joint.path, joint.name, joint.kind, joint.parent, joint.facts, alias, joint.subtree_end)
