"""The hierarchy of modules: one row for every module, and the module of every call."""

from dataclasses import dataclass

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import mixed
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import MODULE_UNCLEAR, MODULES_DIFFER, SHARED_PLACE
from tracekit.markers.base import MODULE, Marker, ModuleMarker
from tracekit.recording.provenance import LossCounters
from tracekit.trace.hierarchy.mapped_modules import UNPLACED, MappedModules, MappedRuns, add_mapped_modules
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT, Nested, module_paths_of
from tracekit.trace.hierarchy.module_trees import MergedModule, Nodes, merge_hierarchies, nodes_of, trees
from tracekit.trace.hierarchy.path_collisions import NOTHING, Called, Facts, facts_of, path_collisions_of


@dataclass(slots=True)
class Module:
    """One module of the hierarchy; no marker states facts of a container that is never called itself."""

    path: str
    name: str
    kind: str
    parent: int
    facts: Facts
    alias_of: str | None
    subtree_end: int


def hierarchy(
    calls: Nested, markers: list[Marker], counters: LossCounters, runs: MappedRuns, around: Ints
) -> tuple[list[Module], Ints, Flags, MappedModules]:
    """The modules of all calls in pre-order, and the row of that of every call; -1 where it is not known.

    Also the calls whose path stands for several modules, so that theirs is not known; and the places of the modules of
    kernel maps. The call ``around`` each run of a compiled graph may be -1.
    """
    places = module_paths_of(calls, markers, counters)
    marker_facts, facts = _facts(markers)
    numbers: dict[str, int] = {}
    marked_path = [numbers.setdefault(getattr(marker, "path", ""), len(numbers)) for marker in markers]
    of_calls = places.path, places.placed, np.array([*marked_path, -1])[calls.marker], marker_facts[calls.marker]
    called = Called(calls.parent, calls.depth, calls.process, *of_calls)
    collisions = path_collisions_of(called, places.paths, facts)
    known = np.array([*(isinstance(marker, ModuleMarker) for marker in markers), False])[calls.marker]
    clear = np.flatnonzero(known & ~collisions.unclear)
    nodes, node = nodes_of(called, collisions, clear, calls.start_ns, facts)
    trees_of_processes = trees(nodes, places.paths, collisions.numbers)
    node_of_call = np.full(known.size + 1, UNPLACED, dtype=np.int64)
    node_of_call[clear], node_of_call[-1] = node, -1
    enclosing = node_of_call[around], lookup(places.path, around), lookup(calls.marker, around)
    of_run, mapped = add_mapped_modules(runs, enclosing, trees_of_processes, markers, places.paths)
    joints = merge_hierarchies(trees_of_processes.roots)
    module = np.full(known.size, -1, dtype=np.int64)
    of_node, first_call = _rows_of_nodes(joints, nodes)
    module[clear] = of_node[node]
    unclear = known & collisions.unclear
    counters.add("calls", MODULE_UNCLEAR, int(unclear.sum()))
    counters.add("modules", MODULES_DIFFER, sum(joint.differs for joint in joints))
    # Each process marks its own modules.
    own = np.where(called.placed, node_of_call[:-1], -1)
    counters.add("calls", SHARED_PLACE, _sharing(called.marked_path, calls.start_ns, own))
    firsts = (lookup(column, first_call).tolist() for column in (calls.marker, places.first))
    elsewhere = [*places.paths, None]
    modules = [
        _module(joint, _marked(markers, marker) or elsewhere[first])
        for joint, marker, first in zip(joints, *firsts, strict=True)
    ]
    row_of_tree: dict[int, int] = {id(tree): row for row, joint in enumerate(joints) for tree in joint.same}
    rows = [{path: row_of_tree.get(id(tree), -1) for path, tree in trees.items()} for trees in mapped]
    return modules, module, unclear, MappedModules(of_run, rows)


def _facts(markers: list[Marker]) -> tuple[Ints, list[Facts]]:
    numbers: dict[Facts, int] = {NOTHING: 0}
    facts = (facts_of(marker) if isinstance(marker, ModuleMarker) else NOTHING for marker in markers)
    rows = [numbers.setdefault(known, len(numbers)) for known in facts]
    return np.array([*rows, 0], dtype=np.int64), list(numbers)


def _rows_of_nodes(joints: list[MergedModule], nodes: Nodes) -> tuple[Ints, Rows]:
    members = np.array([tree.row for joint in joints for tree in joint.same], dtype=np.int64)
    joint = np.repeat(np.arange(len(joints)), [len(joint.same) for joint in joints])
    joint, members = joint[members >= 0], members[members >= 0]
    row, first_call = (np.full(size, -1, dtype=np.int64) for size in (nodes.place.size, len(joints)))
    row[members] = joint
    # The earliest is written last, and of those of one time the first.
    latest = np.argsort(nodes.first_ns[members], kind="stable")[::-1]
    first_call[joint[latest]] = nodes.first_call[members[latest]]
    return row, first_call


def _marked(markers: list[Marker], row: int) -> str | None:
    marker = markers[row] if row >= 0 else None
    return marker.path if isinstance(marker, ModuleMarker) and not marker.class_only else None


_NAMELESS = f"{NAMELESS_ROOT}."


def _module(joint: MergedModule, marked: str | None) -> Module:
    path, place = joint.path.removeprefix(_NAMELESS), joint.place.removeprefix(_NAMELESS)
    # If several modules have one path, all but the first get another path than their markers say; containers, too.
    alias = None if marked == path else marked or (place if place != path else None)
    if joint.kind != MODULE:
        alias = None
    return Module(joint.path, joint.name, joint.kind, joint.parent, joint.facts, alias, joint.subtree_end)


def _sharing(path: Ints, start_ns: Ints, module: Ints) -> int:
    rows = np.flatnonzero(module >= 0)
    modules = int(module.max(initial=-1)) + 1
    rows = rows[mixed(module[rows], path[rows], modules)[module[rows]]]
    if not rows.size:
        return 0
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    shared, first = np.unique(module[rows], return_index=True)
    first_path = np.full(modules, -1)
    first_path[shared] = path[rows[first]]
    return int((first_path[module[rows]] != path[rows]).sum())
