"""``modules``: the hierarchy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.schema import Column, TableSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.attribution.base import Trace
    from tracekit.trace.hierarchy.facts import Facts
    from tracekit.trace.hierarchy.modules import Module

_PARAM = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("dtype", pa.string()),
    ]
)

SPEC = TableSpec(
    "modules",
    "One row per module of the hierarchy, in pre-order; containers that are never called are rows too.",
    (
        Column("module_id", pa.int32(), "Rank in pre-order: the row's number."),
        Column("subtree_end_id", pa.int32(), "Its subtree is module_id <= x < subtree_end_id."),
        Column("parent_id", pa.int32(), "The module above; null for a root.", nullable=True),
        Column("depth", pa.int16(), "How many modules are above it."),
        Column(
            "path",
            pa.string(),
            "Dotted path of the place where it ran, such as top.model.layers.3.mlp; of a second module there top~2.",
        ),
        Column("name", pa.string(), "Last part of the path."),
        Column("class_name", pa.string(), "Its class, where a marker says it.", nullable=True),
        Column(
            "alias_of",
            pa.string(),
            "Path that its marker says, where that is another: it is shared, or one of several modules of that path.",
            nullable=True,
        ),
        Column(
            "params",
            pa.list_(_PARAM),
            "Its own trainable parameters; a size is null where processes hold shards of other sizes.",
        ),
        Column("static_params", pa.string(), "Other settings, as JSON.", nullable=True),
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
