"""The modules of each report, and the one hierarchy that they make together.

``modules_of_reports.parquet`` keeps the modules of each report before they were joined with those of others. From them
the hierarchy is made again when a report is added, without reading the reports; reports with equal modules, such as the
ranks of a job, share one entry. A path is one module, unless reports contradict each other about it; the order of the
reports does not change which modules there are.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays.columns import integers
from tracekit.arrays.types import Ints
from tracekit.dataset import manifest
from tracekit.dataset.opening import id_of
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.errors import DatasetError
from tracekit.markers.base import MODULE, Param
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.storage.locations import Location
from tracekit.tables import modules
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT
from tracekit.trace.hierarchy.module_trees import MergedModule, Tree, merge_hierarchies
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.hierarchy.path_collisions import CONTRADICTED, Facts, same

_SPEC = TableSpec(
    manifest.PER_REPORT_MODULES,
    "The modules of each report alone, in pre-order. Reports with equal modules share one hierarchy.",
    (
        Column(
            "hierarchy", pa.int32(), "Number of the hierarchy, to which manifest.json refers as per_report_modules."
        ),
        Column("digest", CATEGORY, "Id of the table modules of the report alone."),
        Column("contradicts_itself", pa.bool_(), "Whether a report describes one of its modules in different ways."),
        Column("united_id", pa.int32(), "Id of the module in the table modules of all reports."),
        *modules.SPEC.columns,
    ),
)


class Key(NamedTuple):
    """What makes two hierarchies one: the id of their files, and whether their report contradicts itself."""

    digest: str
    contradicts_itself: bool


class Hierarchy(NamedTuple):
    """The modules that one or more reports have, with their ids in the tables of these reports as they lie there."""

    key: Key
    table: pa.Table
    ids: Ints
    paths: list[str]


#: That of reports without modules, which have no rows in the file, and no number.
NO_MODULES = Key("", contradicts_itself=False)


def nothing() -> Hierarchy:
    """The hierarchy of a report without modules."""
    return Hierarchy(NO_MODULES, modules.SPEC.empty(), np.zeros(0, np.int32), [])


def of_one_report(folder: Path, key: Key) -> Hierarchy:
    """The modules of a dataset of one report."""
    return of_table(pq.read_table(folder / "modules.parquet"), key)


def of_table(rows: pa.Table, key: Key) -> Hierarchy:
    """The modules of a table ``modules``."""
    table = _alike(rows)
    if not table.num_rows:
        return nothing()
    return Hierarchy(key, table, np.arange(table.num_rows, dtype=np.int32), table.column("path").to_pylist())


def _alike(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("kind")
    kind = table.column(at).cast(pa.string()).combine_chunks().dictionary_encode().cast(CATEGORY)
    return modules.SPEC.table({name: table.column(name) for name in table.column_names} | {"kind": kind})


def read(
    place: Location, listed: Mapping[str, Any], readable: Callable[[str, str | None], Path]
) -> dict[int, Hierarchy]:
    """The hierarchies of a dataset of several reports, by their numbers.

    ``readable`` is where the file of a table and a report, or of all, can be read on this machine.
    """
    try:
        with pq.ParquetFile(readable(_SPEC.name, None)) as file:
            table, found = file.read(), id_of(file.metadata)
        united = pq.read_table(readable("modules", None), columns=["path"]).column("path").to_pylist()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0]
        problem = f"its table {_SPEC.name} cannot be read ({reason})"
        raise DatasetError(place, problem, "parse all of its reports again, together") from None
    if found != listed[manifest.TABLE_IDS][_SPEC.name]:
        raise DatasetError(place, f"its table {_SPEC.name} is from another parse", "run the command again")
    numbers = integers(table, "hierarchy")
    bounds = [0, *(np.flatnonzero(np.diff(numbers, append=-1)) + 1).tolist()]
    return {int(numbers[start]): _hierarchy(table.slice(start, end - start), united) for start, end in pairwise(bounds)}


def _hierarchy(rows: pa.Table, united: list[str]) -> Hierarchy:
    key = Key(rows.column("digest")[0].as_py(), rows.column("contradicts_itself")[0].as_py())
    ids = integers(rows, "united_id").astype(np.int32)
    table = _alike(rows.select([column.name for column in modules.SPEC.columns]))
    return Hierarchy(key, table, ids, [united[at] for at in ids.tolist()])


def write(folder: Path, hierarchies: Sequence[Hierarchy], united: Sequence[Ints]) -> None:
    """Writes the hierarchies with the ids of their modules in that of all reports."""
    with table_writer(folder / f"{_SPEC.name}.parquet", _SPEC) as writer:
        for number, (hierarchy, ids) in enumerate(zip(hierarchies, united, strict=True)):
            size, digests = hierarchy.table.num_rows, pa.array([hierarchy.key.digest])
            columns = {
                "hierarchy": pa.array(np.full(size, number, np.int32)),
                "digest": pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), digests),
                "contradicts_itself": pa.array(np.full(size, hierarchy.key.contradicts_itself)),
                "united_id": pa.array(ids.astype(np.int32)),
                **{column.name: hierarchy.table.column(column.name) for column in modules.SPEC.columns},
            }
            writer.write_table(_SPEC.table(columns), row_group_size=ROW_GROUP)


def _first(tree: Tree) -> tuple[bool, tuple[int, int]]:
    return tree.first is None, tree.first or (0, 0)


_NUMBERED = re.compile(r"(.*)~\d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Union:
    """The modules of several reports.

    Attributes:
        module_id: For every report, the new id of each of its modules by its old one.
        differing: For every report, how many of its modules are described differently by another report, or may be any
            of several modules of it.
        differing_modules: How many modules that are.
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
    """The tables ``modules`` of several reports as one, in pre-order, siblings as they stand in the reports.

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
    """Numbers of modules that each trace counts anew, in the order of first calls: ``Linear_0``.

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
        name = _own_name(row["name"], row["alias_of"])
        first = (called[number], number) if number in called else None
        tree = Tree(name, source, number, facts_in(row, missing), first=first, kind=row["kind"])
        trees.append(tree)
        (roots if row["parent_id"] is None else trees[row["parent_id"]].below).append(tree)
    for tree in reversed(trees) if called else ():
        tree.first = min((one.first for one in (tree, *tree.below) if one.first), default=None)
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
