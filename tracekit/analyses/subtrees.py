"""The hierarchy as arrays, and sums along it. A row is a place in the table ``modules``; -1 is no module."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import sums_by
from tracekit.arrays.intervals import by_level

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset


class Hierarchy(NamedTuple):
    """The modules in pre-order; ``parent`` is -1 for a root, and the subtree of ``m`` is ``m`` to ``end[m]``."""

    first: int
    path: list[str]
    name: list[str]
    class_name: list[str | None]
    depth: Ints
    parent: Rows
    end: Rows
    kind: list[str]

    def rows(self, table: pa.Table) -> Rows:
        """The row of each entry of a table's ``module_id``; -1 for none, and for modules outside this hierarchy."""
        ids = integers(table, "module_id").astype(np.int64)
        inside = (ids >= self.first) & (ids < self.first + len(self.path))
        return np.where(inside, ids - self.first, -1)

    def paths(self, rows: Rows) -> list[str | None]:
        """The paths of some rows, None for no module."""
        paths = [*self.path, None]
        return [paths[row] for row in rows.tolist()]

    def lineage(self, row: int) -> list[str]:
        """The names from the root down to a module: a path cannot be divided at dots, which names may hold."""
        names = []
        while row >= 0:
            names.append(self.name[row])
            row = int(self.parent[row])
        return names[::-1]

    def inclusive(self, own: Ints) -> Ints:
        """For every module its own value plus those of all modules below it."""
        running = np.concatenate((np.zeros(1, own.dtype), np.cumsum(own)))
        total: Ints = running[self.end] - running[:-1]
        return total


class Pairs(NamedTuple):
    """Values of nodes in each of some groups (steps, say)."""

    node: Rows
    group: Ints
    value: Ints


def hierarchy(dataset: Dataset) -> Hierarchy:
    """The modules of a dataset, or of a subtree of one."""
    columns = ["module_id", "path", "name", "class_name", "depth", "parent_id", "subtree_end_id", "kind"]
    modules = dataset.table("modules", columns)
    first = modules.column("module_id")[0].as_py() if modules.num_rows else 0
    parent = integers(modules, "parent_id").astype(np.int64) - first
    return Hierarchy(
        first,
        modules.column("path").to_pylist(),
        modules.column("name").to_pylist(),
        modules.column("class_name").to_pylist(),
        _below_first(integers(modules, "depth").astype(np.int64)),
        np.maximum(parent, -1),
        integers(modules, "subtree_end_id").astype(np.int64) - first,
        modules.column("kind").to_pylist(),
    )


def inclusive_pairs(parent: Rows, depth: Ints, own: Pairs) -> Pairs:
    """The values of each node plus those of all nodes below it, by group.

    Args:
        parent: The node above each node, or -1.
        depth: The number of nodes above it.
        own: Values of the nodes themselves, in any order; a node and group may have several.

    Returns:
        A row for each node and group with values, in no particular order.
    """
    levels: list[Pairs] = []
    carried = Pairs(*(np.empty(0, np.int64) for _ in Pairs._fields))
    for rows in reversed(by_level(depth[own.node])):
        columns = [np.concatenate((up, column[rows])) for up, column in zip(carried, own, strict=True)]
        level = united(Pairs(*columns))
        levels.append(level)
        above = parent[level.node]
        kept = above >= 0
        carried = Pairs(above[kept], level.group[kept], level.value[kept])
    return Pairs(*(np.concatenate(parts) for parts in zip(*levels, strict=True))) if levels else carried


def united(pairs: Pairs) -> Pairs:
    """One row for each node and group, in their order."""
    (node, group), (value,) = sums_by((pairs.node, pairs.group), (pairs.value,))
    return Pairs(node, group, value)


def _below_first(depth: Ints) -> Ints:
    """Depths below the first module, which in a subtree is its root."""
    return depth - (depth[0] if depth.size else 0)
