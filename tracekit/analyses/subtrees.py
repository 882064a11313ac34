"""The hierarchy as arrays, and sums along it. Rows are places in the table ``modules``; -1 is no module."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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

    def rows(self, table: pa.Table) -> Rows:
        """The row of each entry of its column ``module_id``, -1 where there is none here."""
        ids = integers(table, "module_id", missing=-1).astype(np.int64)
        inside = (ids >= self.first) & (ids < self.first + len(self.path))
        return np.where(inside, ids - self.first, -1)

    def paths(self, rows: Rows) -> list[str | None]:
        """Their paths, None for no module."""
        named = [*self.path, None]
        return [named[row] for row in rows.tolist()]

    def inclusive(self, own: Ints) -> Ints:
        """For every module its own plus what all below it have."""
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
    columns = ["module_id", "path", "name", "class_name", "depth", "parent_id", "subtree_end_id"]
    modules = dataset.table("modules", columns)
    first = modules.column("module_id")[0].as_py() if modules.num_rows else 0
    parent = integers(modules, "parent_id", missing=-1).astype(np.int64) - first
    return Hierarchy(
        first,
        modules.column("path").to_pylist(),
        modules.column("name").to_pylist(),
        modules.column("class_name").to_pylist(),
        _below_first(integers(modules, "depth").astype(np.int64)),
        np.maximum(parent, -1),
        integers(modules, "subtree_end_id").astype(np.int64) - first,
    )


def integers(table: pa.Table, column: str, *, missing: int | None = None) -> Ints:
    """A column as NumPy integers, ``missing`` where it is null."""
    values = table.column(column)
    return np.asarray(values if missing is None else values.fill_null(missing))


def summed(group: Rows, value: Ints | None, groups: int) -> Ints:
    """The sum of the values of each group, or their number; a group of -1 is left out."""
    total = np.zeros(groups + 1, dtype=np.int64)
    np.add.at(total, group, 1 if value is None else value)
    return total[:groups]


def inclusive_pairs(parent: Rows, depth: Ints, own: Pairs) -> Pairs:
    """The values of each node together with those of all below it, by group.

    Args:
        parent: The node above each node, or -1.
        depth: How many are above it.
        own: Values of the nodes themselves, in any order, also several of one node and group.

    Returns:
        A row for each node and group that has any, in no order.
    """
    found: list[Pairs] = []
    groups = int(own.group.max(initial=0)) + 1
    order = by_level(depth[own.node])
    carried = Pairs(*(np.empty(0, np.int64) for _ in Pairs._fields))
    for rows in reversed(order):
        here = [np.concatenate((up, its[rows])) for up, its in zip(carried, own, strict=True)]
        whole = united(Pairs(*here), groups)
        found.append(whole)
        above = parent[whole.node]
        kept = above >= 0
        carried = Pairs(above[kept], whole.group[kept], whole.value[kept])
    return Pairs(*(np.concatenate(parts) for parts in zip(*found, strict=True))) if found else carried


def united(pairs: Pairs, groups: int) -> Pairs:
    """One row for each node and group."""
    if not pairs.node.size:
        return pairs
    key = pairs.node.astype(np.int64) * groups + pairs.group
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    node, group = np.divmod(key[starts], groups)
    return Pairs(node, group, np.add.reduceat(pairs.value[order], starts))


def _below_first(depth: Ints) -> Ints:
    """Depths below the first module, which in a subtree is its root."""
    return depth - (depth[0] if depth.size else 0)
