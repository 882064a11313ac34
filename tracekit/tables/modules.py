"""``modules``: the hierarchy."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.attribution.base import Trace
from tracekit.markers.base import KINDS
from tracekit.schema import CATEGORY, Column, Nullable, TableSpec
from tracekit.tables.base import category
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.hierarchy.path_collisions import Facts

_PARAM = pa.struct(
    [pa.field("name", pa.string()), pa.field("shape", pa.list_(pa.int64())), pa.field("dtype", pa.string())]
)

SPEC = TableSpec(
    "modules",
    "One row per module of the hierarchy in pre-order, including containers that are never called. If the report has "
    "no modules, its rows are plain ranges or operators.",
    (
        Column("module_id", pa.int32(), "Unique id: the row number in pre-order."),
        Column("subtree_end_id", pa.int32(), "End of its subtree, which has the ids module_id <= id < subtree_end_id."),
        Nullable("parent_id", pa.int32(), "Id of the parent module; null for a root."),
        Column("depth", pa.int16(), "Number of modules above it."),
        Column(
            "path",
            pa.string(),
            "Dotted path of the place where it runs, such as top.model.layers.3.mlp; a second module at the same place "
            "is numbered, as in top~2.",
        ),
        Column("name", pa.string(), "Last part of the path. That of a range may hold dots."),
        Column(
            "kind",
            CATEGORY,
            "module; or range (a plain NVTX range), operator or region (a compiled graph of which nothing more is "
            "known) if the dataset is keyed by these.",
        ),
        Nullable("class_name", pa.string(), "Class of the module; null if no marker records it."),
        Nullable(
            "alias_of",
            pa.string(),
            "Path that its markers record, if different: the module is shared, or several modules have that path. "
            "Where they record no path (with_stack), that of its first call. Null if the same.",
        ),
        Column(
            "params",
            pa.list_(_PARAM),
            "Its own trainable parameters, without those of submodules; a shape or dimension is null where markers "
            "disagree, as for shards of different sizes.",
        ),
        Nullable(
            "static_params", pa.string(), "Other settings of the module, as JSON; null if no marker records them."
        ),
    ),
    sorted_by=("module_id",),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The modules of all processes in one hierarchy."""
    yield table_of(trace.evidence.calls.modules)


def table_of(modules: list[Module]) -> pa.Table:
    """The table of some modules in pre-order."""
    columns = {
        "module_id": pa.array(range(len(modules)), pa.int32()),
        "subtree_end_id": pa.array([module.subtree_end for module in modules], pa.int32()),
        "parent_id": pa.array([None if module.parent < 0 else module.parent for module in modules], pa.int32()),
        "depth": pa.array(_depths(modules), pa.int16()),
        "path": pa.array([module.path for module in modules], pa.string()),
        "name": pa.array([module.name for module in modules], pa.string()),
        "kind": category(np.array([KINDS.index(module.kind) for module in modules], dtype=np.int64), KINDS),
        "class_name": pa.array([module.facts.class_name or None for module in modules], pa.string()),
        "alias_of": pa.array([module.alias_of for module in modules], pa.string()),
        "params": pa.array([_params(module.facts) for module in modules], pa.list_(_PARAM)),
        "static_params": pa.array([module.facts.static_params or None for module in modules], pa.string()),
    }
    return SPEC.table(columns)


def _depths(modules: list[Module]) -> list[int]:
    depths: list[int] = []
    for module in modules:
        depths.append(depths[module.parent] + 1 if module.parent >= 0 else 0)
    return depths


def _params(facts: Facts) -> list[dict[str, object]]:
    return [{"name": param.name, "shape": param.shape, "dtype": param.dtype} for param in facts.params]
