"""``modules``: the hierarchy."""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from tracekit.attribution.base import Trace
from tracekit.markers.base import KINDS
from tracekit.schema import tables
from tracekit.tables.base import category
from tracekit.trace.hierarchy.modules import Module

SPEC = tables.Modules.SPEC


def build(trace: Trace) -> Iterator[pa.Table]:
    """The modules of all processes in one hierarchy."""
    yield table_of(trace.evidence.calls.modules)


def table_of(modules: list[Module]) -> pa.Table:
    """The table of some modules in pre-order."""
    depths: list[int] = []
    for module in modules:
        depths.append(depths[module.parent] + 1 if module.parent >= 0 else 0)
    columns = {
        "module_id": range(len(modules)),
        "subtree_end_id": [module.subtree_end for module in modules],
        "parent_id": [None if module.parent < 0 else module.parent for module in modules],
        "depth": depths,
        "path": [module.path for module in modules],
        "name": [module.name for module in modules],
        "kind": category(np.array([KINDS.index(module.kind) for module in modules], dtype=np.int64), KINDS),
        "class_name": [module.facts.class_name or None for module in modules],
        "alias_of": [module.alias_of for module in modules],
        "params": [[asdict(param) for param in module.facts.params] for module in modules],
        "static_params": [module.facts.static_params or None for module in modules],
    }
    return SPEC.table(columns)
