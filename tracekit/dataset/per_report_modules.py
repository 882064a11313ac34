"""The one hierarchy that the modules of several reports make together.

A path is one module, unless reports contradict each other about it; the order of the reports does not change which
modules there are.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Ints
from tracekit.markers.base import MODULE, Param
from tracekit.schema import CATEGORY
from tracekit.tables import modules
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT
from tracekit.trace.hierarchy.module_trees import MergedModule, Tree, merge_hierarchies
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.hierarchy.path_collisions import CONTRADICTED, Facts, same


def alike(table: pa.Table) -> pa.Table:
    """A table ``modules``, encoded so that equal ones are equal to Arrow too."""
    at = table.schema.get_field_index("kind")
    kind = table.column(at).cast(pa.string()).combine_chunks().dictionary_encode().cast(CATEGORY)
    return modules.SPEC.table({name: table.column(name) for name in table.column_names} | {"kind": kind})


def _first(tree: Tree) -> tuple[bool, tuple[int, int]]:
    return tree.first is None, tree.first or (0, 0)


_NUMBER = re.compile(r"~\d+\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Union:
    """The modules of several reports, the new id of each by its old one for every report, and how many differ.

    ``differing`` is how many of its modules another report describes differently, or may be any of several modules of
    it.
    """

    table: pa.Table
    module_id: list[Ints]
    differing: list[int]
    differing_modules: int = 0


#: When modules were first called, by their ids.
FirstCalls: TypeAlias = Mapping[int, int]


def united(
    tables: Sequence[pa.Table], contradictory: frozenset[int] = frozenset(), called: Sequence[FirstCalls] = ()
) -> Union:
    """The tables ``modules`` of several reports as one, in pre-order, siblings in the order of the reports.

    What a ``contradictory`` table, which describes a module in different ways, does not record may be missing because
    of that, so no other report may fill it in.
    If they are of processes of one report, which share a clock and the numbers of modules, ``called`` has first calls.
    """
    first = tables[0]
    own = np.arange(first.num_rows, dtype=np.int32)
    if all(table.equals(first) for table in tables[1:]):
        return Union(first, [own] * len(tables), [0] * len(tables))
    rows = [table.to_pylist() for table in tables]
    roots = [
        _roots(own_rows, source, CONTRADICTED if source in contradictory else None, called[source] if called else {})
        for source, own_rows in enumerate(rows)
    ]
    numbers = _Numbers()
    for trees, own_rows in () if called else zip(roots, rows, strict=True):
        numbers.raise_in(trees, own_rows)
    every = [root for trees in roots for root in trees]
    joint = merge_hierarchies(sorted(every, key=_first) if called else every)
    ids = [np.zeros(len(own_rows), dtype=np.int32) for own_rows in rows]
    differing = [0] * len(rows)
    for new_id, node in enumerate(joint):
        for tree in _at_odds(node):
            differing[tree.source] += 1
        for tree in node.same:
            ids[tree.source][tree.row] = new_id
    table = modules.table_of([_module(node, rows, timed=bool(called)) for node in joint])
    return Union(table, ids, differing, sum(node.differs for node in joint))


class _Numbers:
    """Numbers of modules that each trace counts from 0, in the order of first calls: ``Linear_0``.

    They are of the same modules where traces number alike all that a root module calls, with weights of equal shapes.
    Elsewhere those of later traces are raised, so that two modules never share a row; the only root of its class is the
    same in all, but for its weight.
    """

    def __init__(self) -> None:
        #: How much numbers are raised, by what is numbered together and how, and class; and the first that is free.
        self._raised: dict[tuple[str, object], dict[str, int]] = {}
        self._free: Counter[tuple[str, str]] = Counter()

    def raise_in(self, roots: list[Tree], rows: list[dict[str, Any]]) -> None:
        """Raises numbers of a report's modules, and in their aliases."""
        before = {root.row: [(path, tree.facts.params) for path, tree in _with_paths(root)] for root in roots}
        of_class: dict[str, list[Tree]] = {}
        for root in roots:
            if all(_class_and_number(tree) for _, tree in _with_paths(root)):
                of_class.setdefault(root.facts.class_name or "", []).append(root)
        for name, alike in of_class.items():
            own = alike[0].facts.params if len(alike) == 1 else [before[root.row] for root in alike]
            self._raise(name, repr(own), alike)
            for root in alike:
                how = [(path.partition(".")[2], params) for path, params in before[root.row]]
                self._raise(f".{root.name}", repr(how), [tree for _, tree in _with_paths(root)][1:])
        paths = {rows[tree.row]["path"]: path for root in roots for path, tree in _with_paths(root)}
        for row in rows:
            row["alias_of"] = paths.get(row["alias_of"], row["alias_of"])

    def _raise(self, where: str, how: object, trees: list[Tree]) -> None:
        numbered = [(tree, *known) for tree in trees if (known := _class_and_number(tree))]
        if (where, how) not in self._raised:
            by_class = self._raised[where, how] = {name: self._free[where, name] for _, name, _ in numbered}
            for _, name, number in numbered:
                self._free[where, name] = max(self._free[where, name], by_class[name] + number + 1)
        for tree, name, number in numbered:
            tree.name = f"{name}_{number + self._raised[where, how][name]}"


def _class_and_number(tree: Tree) -> tuple[str, int] | None:
    name, _, number = tree.name.rpartition("_")
    is_one = number.isdecimal() and name == (tree.facts.class_name or "").replace(".", "_")
    return (name, int(number)) if is_one else None


def _with_paths(root: Tree) -> Iterator[tuple[str, Tree]]:
    pending = [(root.name, root)]
    while pending:
        path, tree = pending.pop()
        yield path, tree
        pending += [(f"{path}.{child.name}", child) for child in reversed(tree.below)]


def _at_odds(joint: MergedModule) -> list[Tree]:
    """The reports' nodes that describe a module differently than another report, or may be another module."""
    if not joint.differs:
        return []
    descriptions = {tree.facts for tree in joint.same}
    odd = {facts for facts in descriptions if not all(same(facts, other) for other in descriptions)}
    return [tree for tree in joint.same if tree.facts in odd] or joint.same


def _roots(rows: list[dict[str, Any]], source: int, missing: str | None, called: FirstCalls) -> list[Tree]:
    trees: list[Tree] = []
    roots: list[Tree] = []
    for number, row in enumerate(rows):
        # Markers have the name without the number that sets it apart from others of its path.
        plain = _NUMBER.sub("", row["name"])
        name = plain if (row["alias_of"] or "").rpartition(".")[2] == plain else row["name"]
        first = (called[number], number) if number in called else None
        tree = Tree(name, source, number, facts_in(row, missing), first=first, kind=row["kind"])
        trees.append(tree)
        (roots if row["parent_id"] is None else trees[row["parent_id"]].below).append(tree)
    for tree in reversed(trees) if called else ():
        tree.first = min((one.first for one in (tree, *tree.below) if one.first), default=None)
    return roots


def facts_in(row: dict[str, Any], missing: str | None) -> Facts:
    """What a row of ``modules`` states; a class or settings that it does not record become ``missing``."""
    params = (
        Param(param["name"], None if param["shape"] is None else tuple(param["shape"]), param["dtype"])
        for param in row["params"]
    )
    return Facts(row["class_name"] or missing, tuple(params), row["static_params"] or missing)


def _module(joint: MergedModule, rows: list[list[dict[str, Any]]], *, timed: bool) -> Module:
    """A module as all reports describe it; of several aliases the first in alphabetical order, or by first calls."""
    path, place = (path.removeprefix(f"{NAMELESS_ROOT}.") for path in (joint.path, joint.place))
    same = [rows[tree.source][tree.row] for tree in sorted(joint.same, key=_first)]
    aliases = {row["alias_of"] for row in same} - {None, path}
    alias = min(aliases, default=None if path == place else place)
    if timed and joint.kind == MODULE:
        marked = same[0]["alias_of"] or same[0]["path"]
        alias = None if marked == path else marked
    return Module(joint.path, joint.name, joint.kind, joint.parent, joint.facts, alias, joint.subtree_end)
