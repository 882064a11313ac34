"""The hierarchy of modules: one row for every module, and the module of every call."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import mixed
from tracekit.arrays.types import Flags, Ints
from tracekit.causes import MODULE_UNCLEAR, MODULES_DIFFER, SHARED_PLACE
from tracekit.markers.base import MODULE, Marker, ModuleMarker
from tracekit.recording.provenance import LossCounters
from tracekit.trace.hierarchy.mapped_modules import (
    UNPLACED,
    EnclosingCalls,
    MappedModules,
    MappedRuns,
    add_mapped_modules,
)
from tracekit.trace.hierarchy.module_paths import NAMELESS_ROOT, ModulePaths, Nested, module_paths_of
from tracekit.trace.hierarchy.module_trees import MergedModule, Nodes, merge_hierarchies, nodes_of, trees
from tracekit.trace.hierarchy.path_collisions import NOTHING, Called, Facts, facts_of, path_collisions_of


@dataclass(slots=True)
class Module:
    """One module of the hierarchy.

    Attributes:
        parent: Row of the module above, or -1.
        facts: What its markers say about it; nothing of a container that is never called itself.
    """

    path: str
    name: str
    kind: str
    parent: int
    facts: Facts
    alias_of: str | None
    subtree_end: int


class Hierarchy(NamedTuple):
    """The modules of all calls.

    Attributes:
        module: For every call its row in them; -1 where it is not known.
        unclear: Calls whose path stands for several modules, so that theirs is not known.
        mapped_modules: Where the modules of kernel maps stand.
    """

    modules: list[Module]
    module: Ints
    unclear: Flags
    mapped_modules: MappedModules


def hierarchy(
    calls: Nested, markers: list[Marker], counters: LossCounters, runs: MappedRuns, around: Ints
) -> Hierarchy:
    """The modules of all calls in pre-order, and the module of every call.

    Args:
        calls: The calls.
        markers: The distinct markers.
        counters: Where losses are counted.
        runs: Runs of compiled graphs, whose maps name further modules.
        around: For every run the row of the call around it, or -1.
    """
    places = module_paths_of(calls, markers, counters)
    marker_facts, facts = _facts(markers)
    called = _called(calls, places, _path_numbers(markers)[calls.marker], marker_facts[calls.marker])
    collisions = path_collisions_of(called, places.paths, facts)
    known = np.array([isinstance(marker, ModuleMarker) for marker in markers] + [False])[calls.marker]
    clear = np.flatnonzero(known & ~collisions.unclear)
    nodes, node = nodes_of(called, collisions, clear, calls.start_ns, facts)
    trees_of_processes = trees(nodes, places.paths, collisions.numbers)
    node_of_call = np.full(known.size + 1, UNPLACED, dtype=np.int64)
    node_of_call[clear], node_of_call[-1] = node, -1
    enclosing = EnclosingCalls(
        node_of_call[around], np.append(places.path, -1)[around], np.append(calls.marker, -1)[around]
    )
    mapped = add_mapped_modules(runs, enclosing, trees_of_processes, markers, places.paths)
    joints = merge_hierarchies(trees_of_processes.roots)
    module = np.full(known.size, -1, dtype=np.int64)
    module[clear] = _rows_of_nodes(joints, nodes)[node]
    unclear = known & collisions.unclear
    counters.add("calls", MODULE_UNCLEAR, int(unclear.sum()))
    counters.add("modules", MODULES_DIFFER, sum(joint.differs for joint in joints))
    counters.add(
        "calls", SHARED_PLACE, _sharing(called.marked_path, calls.start_ns, np.where(called.placed, module, -1))
    )
    first_calls = [_first_call(joint, nodes) for joint in joints]
    modules = [
        _module(joint, _marker(markers, calls, call), _elsewhere(places, call))
        for joint, call in zip(joints, first_calls, strict=True)
    ]
    row_of_tree = {id(tree): number for number, joint in enumerate(joints) for tree in joint.same}
    return Hierarchy(modules, module, unclear, mapped.at(row_of_tree))


def _called(calls: Nested, places: ModulePaths, marked_path: Ints, facts: Ints) -> Called:
    return Called(
        parent=calls.parent,
        depth=calls.depth,
        process=calls.process,
        place=places.path,
        placed=places.placed,
        marked_path=marked_path,
        facts=facts,
    )


def _path_numbers(markers: list[Marker]) -> Ints:
    """A number for each marker, the same for those of one path; -1 for none."""
    numbers: dict[str, int] = {}
    paths = (getattr(marker, "path", "") for marker in markers)
    return np.array([*(numbers.setdefault(path, len(numbers)) for path in paths), -1])


def _facts(markers: list[Marker]) -> tuple[Ints, list[Facts]]:
    numbers: dict[Facts, int] = {NOTHING: 0}
    rows = [
        numbers.setdefault(facts_of(marker), len(numbers)) if isinstance(marker, ModuleMarker) else 0
        for marker in markers
    ]
    return np.array([*rows, 0], dtype=np.int64), list(numbers)


def _rows_of_nodes(joints: list[MergedModule], nodes: Nodes) -> Ints:
    row = np.full(nodes.place.size, -1, dtype=np.int64)
    for number, joint in enumerate(joints):
        row[[tree.row for tree in joint.same if tree.row >= 0]] = number
    return row


def _first_call(joint: MergedModule, nodes: Nodes) -> int:
    """Row of its first call; -1 for a container that is never called itself."""
    called = [tree for tree in joint.same if tree.row >= 0]
    if not called:
        return -1
    return int(nodes.first_call[min(called, key=lambda tree: int(nodes.first_ns[tree.row])).row])


def _marker(markers: list[Marker], calls: Nested, call: int) -> ModuleMarker | None:
    marker = markers[calls.marker[call]] if call >= 0 else None
    return marker if isinstance(marker, ModuleMarker) else None


def _elsewhere(places: ModulePaths, call: int) -> str | None:
    first = int(places.first[call]) if call >= 0 else -1
    return places.paths[first] if first >= 0 else None


def _module(joint: MergedModule, marker: ModuleMarker | None, elsewhere: str | None) -> Module:
    path, place = (name.removeprefix(f"{NAMELESS_ROOT}.") for name in (joint.path, joint.place))
    # Of several modules of one path all but the first have another path than their markers; containers, too.
    marked = marker.path if marker and marker.path and not marker.class_only else elsewhere
    alias = None if marked == path else marked or (place if place != path else None)
    if joint.kind != MODULE:
        alias = None
    return Module(joint.path, joint.name, joint.kind, joint.parent, joint.facts, alias, joint.subtree_end)


def _sharing(path: Ints, start_ns: Ints, module: Ints) -> int:
    """How many calls have another path in their marker than the first call of their module."""
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
