"""The modules of several reports as one hierarchy: a path is one module, whichever reports it is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.hierarchy import Module, preorder
from tracekit.tables import modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tracekit.arrays import Ints

#: What markers say of a module beside its path.
_SAID = ("class_name", "alias_of", "params", "static_params")


@dataclass(frozen=True, slots=True)
class Union:
    """The modules of several reports.

    Attributes:
        table: The table ``modules`` of all.
        module_id: For every report, the new id of each of its modules by its old one.
        differing: For every report, how many of its modules say of themselves what an earlier report says otherwise.
    """

    table: pa.Table
    module_id: list[Ints]
    differing: list[int]


def united(tables: Sequence[pa.Table]) -> Union:
    """The tables ``modules`` of several reports as one, in pre-order, siblings by first appearance."""
    first = tables[0]
    own = np.arange(first.num_rows, dtype=np.int32)
    if all(table.equals(first) for table in tables[1:]):
        return Union(first, [own] * len(tables), [0] * len(tables))
    paths = [table.column("path").to_pylist() for table in tables]
    forest: dict[str, Module] = {}
    for path in (path for its in paths for path in its):
        forest.setdefault(path, Module(path, -1, first=len(forest)))
    merged, row = preorder(forest)
    said: dict[str, dict[str, Any]] = {path: {} for path in forest}
    differing = [
        sum(
            _differs(said[one.pop("path")], one)
            for one in table.select(["path", *_SAID]).to_pylist()
        )
        for table in tables
    ]
    ids = [np.array([row[path] for path in its], dtype=np.int32) for its in paths]
    return Union(_table(merged, [said[module.path] for module in merged]), ids, differing)


def _differs(known: dict[str, Any], says: dict[str, Any]) -> bool:
    """Adds what is said of a module to what is known of it; whether the two contradict each other."""
    told = {name: value for name, value in says.items() if value}
    contradicted = [name for name, value in told.items() if known.setdefault(name, value) != value]
    return bool(contradicted)


def _table(merged: list[Module], said: list[dict[str, Any]]) -> pa.Table:
    about: dict[str, object] = {name: [one.get(name) for one in said] for name in _SAID}
    return modules.SPEC.table(
        {**modules.places(merged), **about, "params": [one.get("params", []) for one in said]}
    )
