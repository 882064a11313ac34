"""The modules of several reports as one hierarchy: a path is one module, unless reports contradict each other about it.

Which report comes first changes nothing but which rows are told of it.
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
from tracekit.trace.hierarchy.modules import NAMELESS_ROOT, Module
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
        differing: For every report, of how many of its modules reports say different things, or nobody can say which of
            several modules of another report they are.
        renamed: For every report, the new path of each module that has got another, by its old one.
    """

    table: pa.Table
    module_id: list[Ints]
    differing: list[int]
    renamed: list[dict[str, str]]


def united(tables: Sequence[pa.Table], contradictory: frozenset[int] = frozenset()) -> Union:
    """The tables ``modules`` of several reports as one, in pre-order, siblings as they stand in the reports.

    Args:
        tables: The tables.
        contradictory: Which of them have modules that say different things of themselves; what these do not tell
            may be because of that, so that no other report can fill it in.
    """
    first = tables[0]
    own = np.arange(first.num_rows, dtype=np.int32)
    if all(table.equals(first) for table in tables[1:]):
        return Union(first, [own] * len(tables), [0] * len(tables), [{}] * len(tables))
    rows = [table.to_pylist() for table in tables]
    joint = joined(
        [
            root
            for source, its in enumerate(rows)
            for root in _roots(its, source, CONTRADICTED if source in contradictory else None)
        ]
    )
    ids = [np.zeros(len(its), dtype=np.int32) for its in rows]
    differing = [0] * len(rows)
    renamed: list[dict[str, str]] = [{} for _ in rows]
    for new, one in enumerate(joint):
        for tree in _at_odds(one):
            differing[tree.source] += 1
        for tree in one.same:
            ids[tree.source][tree.row] = new
            if (old := rows[tree.source][tree.row]["path"]) != one.path:
                renamed[tree.source][old] = one.path
    table = modules.table_of([_module(one, rows) for one in joint])
    return Union(table, ids, differing, renamed)


def _at_odds(joint: Joint) -> list[Tree]:
    """What says other things of a module than another report does, or may be of another module."""
    if not joint.differs:
        return []
    said = {tree.facts for tree in joint.same}
    odd = {one for one in said if not all(same(one, other) for other in said)}
    return [tree for tree in joint.same if tree.facts in odd] or joint.same


def _roots(rows: list[dict[str, Any]], source: int, untold: str | None) -> list[Tree]:
    """The modules of one report as trees; what it does not tell of a class or of settings is ``untold``."""
    trees: list[Tree] = []
    roots: list[Tree] = []
    for row, said in enumerate(rows):
        tree = Tree(_own_name(said["name"], said["alias_of"]), source, row, _facts(said, untold))
        trees.append(tree)
        (roots if said["parent_id"] is None else trees[said["parent_id"]].below).append(tree)
    return roots


def _own_name(name: str, said: str | None) -> str:
    """A module's name without the number that tells it from others of its path, whose markers then say it without."""
    found = _NUMBERED.fullmatch(name)
    plain = found.group(1) if found else name
    return plain if said is not None and said.rpartition(".")[2] == plain else name


def _facts(said: dict[str, Any], untold: str | None) -> Facts:
    params = (
        Param(one["name"], None if one["shape"] is None else tuple(one["shape"]), one["dtype"])
        for one in said["params"]
    )
    return Facts(said["class_name"] or untold, tuple(params), said["static_params"] or untold)


def _module(joint: Joint, rows: list[list[dict[str, Any]]]) -> Module:
    """What all reports say of a module; of different words for its path the first that there is."""
    here, place = (path.removeprefix(f"{NAMELESS_ROOT}.") for path in (joint.path, joint.place))
    said = {rows[tree.source][tree.row]["alias_of"] for tree in joint.same} - {None, here}
    alias = min(said, default=None if here == place else place)
    return Module(joint.path, joint.parent, joint.facts, alias, joint.subtree_end)
