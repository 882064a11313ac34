"""The module hierarchy of a dataset: sums over subtrees, and numbered siblings as one pattern."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import sums_by
from tracekit.arrays.intervals import by_level
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.markers.base import MODULE, RANGE


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

    def subtree_sums(self, own: Ints) -> Ints:
        """For every module its own value plus those of all modules below it."""
        running = np.concatenate((np.zeros(1, own.dtype), np.cumsum(own)))
        total: Ints = running[self.end] - running[:-1]
        return total


class Pairs(NamedTuple):
    """Values of nodes in each of some groups (such as steps)."""

    node: Rows
    group: Ints
    value: Ints


def hierarchy(dataset: Dataset) -> Hierarchy:
    """The modules of a dataset, or of a subtree of one."""
    columns = ["module_id", "path", "name", "class_name", "depth", "parent_id", "subtree_end_id", "kind"]
    modules = dataset.table("modules", columns)
    first = modules.column("module_id")[0].as_py() if modules.num_rows else 0
    parent, depth = (integers(modules, name).astype(np.int64) for name in ("parent_id", "depth"))
    return Hierarchy(
        first,
        modules.column("path").to_pylist(),
        modules.column("name").to_pylist(),
        modules.column("class_name").to_pylist(),
        depth - (depth[0] if depth.size else 0),
        np.maximum(parent - first, -1),
        integers(modules, "subtree_end_id").astype(np.int64) - first,
        modules.column("kind").to_pylist(),
    )


def subtree_pairs(parent: Rows, depth: Ints, own: Pairs) -> Pairs:
    """The values of each node plus those of all nodes below it, by group, in no particular order.

    ``parent`` is the node above each, or -1, and ``depth`` the number above it; a node and group may have several rows.
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


#: A number that distinguishes siblings: not the 2 of ``conv2d``.
_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,9}(?![^\W_])")
#: How many numbers of a name are looked at, from its end.
_MOST_NUMBERS = 4


def series(modules: Hierarchy) -> list[str | None]:
    """For each module of a series its name with ``*`` for the number; None for the others.

    A module is in a series if its name is a number, or its class and a number, as Chrome traces name what holds others;
    a range, or a module that holds others, if a sibling has the next number or the one before in place of one of its
    own (of several the one that takes most values: the layer's, not the expert's); a range also if its name begins as
    that of the range around it, which is in one.
    """
    parents, holds_others = modules.parent.tolist(), (modules.end - np.arange(modules.end.size) > 1).tolist()
    names = ["*" if name.isdecimal() else None for name in modules.name]
    for row in np.flatnonzero(holds_others).tolist():
        if is_numbered(modules, row):
            names[row] = f"{modules.class_name[row]}_*"
    numbers = {
        row: [*_numbers(modules.name[row])]
        for row, kind in enumerate(modules.kind)
        if kind == RANGE or (kind == MODULE and holds_others[row] and names[row] is None)
    }
    # By parent and name without the number, the numbers.
    alike: dict[tuple[int, str], set[int]] = {}
    for row, own in numbers.items():
        for name, number in own:
            alike.setdefault((parents[row], name), set()).add(number)
    for row, own in numbers.items():
        taken = {n: alike[parents[row], n] for n, number in own}
        in_series = [n for n, number in own if not taken[n].isdisjoint((number - 1, number + 1))]
        above = parents[row]
        around = names[above] if above >= 0 and modules.kind[row] == RANGE else None
        inherited = _inherited(modules.name[row], modules.name[above], around) if around else None
        names[row] = max(in_series, key=lambda n: len(taken[n]), default=inherited)
    return names


def _inherited(name: str, above: str, around: str) -> str | None:
    before = next(at for at, (number, digit) in enumerate(zip(around, above, strict=False)) if number != digit)
    rest = name.removeprefix(above[: len(above) - len(around) + before + 1])
    return f"{around[:before]}*{rest}" if rest != name and not rest[:1].isdigit() else None


def is_numbered(modules: Hierarchy, row: int) -> bool:
    """Whether the name of a module is its class and a number."""
    class_name = modules.class_name[row]
    above, _, number = modules.name[row].rpartition("_")
    return class_name is not None and number.isdecimal() and above == class_name.replace(".", "_")


def patterns(modules: Hierarchy) -> list[str]:
    """For each module its path with ``*`` for the numbers of series: ``top.layers.*.mlp``."""
    answer: list[str] = []
    for row, (name, parent) in enumerate(zip(series(modules), modules.parent.tolist(), strict=True)):
        own = modules.name[row] if name is None else name
        answer.append(f"{answer[parent]}.{own}" if parent >= 0 else modules.path[row])
    return answer


def _numbers(name: str) -> Iterator[tuple[str, int]]:
    for match in [*_NUMBER.finditer(name)][: -_MOST_NUMBERS - 1 : -1]:
        yield f"{name[: match.start()]}*{name[match.end() :]}", int(match[0])
