"""The module hierarchy of a dataset: sums over subtrees, and numbered siblings as one pattern."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import sums_by
from tracekit.arrays.intervals import by_level
from tracekit.arrays.slices import sums_to
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.dataset.patterns import numbers_as_text
from tracekit.errors import DatasetError
from tracekit.markers.base import MODULE, RANGE


class Hierarchy(NamedTuple):
    """The modules in pre-order; ``parent`` is -1 for a root, and the subtree of ``m`` is ``m`` to ``end[m]``."""

    ids: Ints
    path: list[str]
    name: list[str]
    class_name: list[str | None]
    depth: Ints
    parent: Rows
    end: Rows
    kind: list[str]

    def rows(self, table: pa.Table) -> Rows:
        """The row of each entry of a table's ``module_id``; -1 for none, and for modules outside this hierarchy."""
        return self.rows_of(integers(table, "module_id").astype(np.int64))

    def rows_of(self, ids: Ints) -> Rows:
        """The row of each id of a module; -1 for none, and for modules outside this hierarchy."""
        return positions(ids, self.ids)

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
        return sums_to(own, self.end)


class Pairs(NamedTuple):
    """Values of nodes in each of some groups (such as steps)."""

    node: Rows
    group: Ints
    value: Ints


def hierarchy(dataset: Dataset) -> Hierarchy:
    """The modules of a dataset, or of subtrees of one; depths are those below their roots."""
    words, numbers = ["path", "name", "class_name", "kind"], ["module_id", "parent_id", "depth", "subtree_end_id"]
    modules = dataset.table("modules", [*words, *numbers])
    ids, above, depth, end = (integers(modules, column).astype(np.int64) for column in numbers)
    parent = positions(above, ids)
    if (parent >= np.arange(ids.size)).any():
        problem = "its table modules is damaged: a module comes before the one above it"
        raise DatasetError(dataset.folder, problem, "parse the report again")
    root = np.maximum.accumulate(np.where(parent < 0, np.arange(ids.size), 0))
    path, name, class_name, kind = (modules.column(column).to_pylist() for column in words)
    return Hierarchy(ids, path, name, class_name, depth - depth[root], parent, np.searchsorted(ids, end), kind)


def subtree_pairs(parent: Rows, depth: Ints, own: Pairs) -> Pairs:
    """The values of each node (``parent`` is the one above, or -1) plus those of all below it, by group, unordered."""
    levels: list[Pairs] = []
    carried = Pairs(*(np.empty(0, np.int64) for _ in Pairs._fields))
    for rows in reversed(by_level(depth[own.node])):
        columns = [np.concatenate((up, column[rows])) for up, column in zip(carried, own, strict=True)]
        level = summed_by_node(Pairs(*columns))
        levels.append(level)
        above = parent[level.node]
        kept = above >= 0
        carried = Pairs(above[kept], level.group[kept], level.value[kept])
    return Pairs(*(np.concatenate(parts) for parts in zip(*levels, strict=True))) if levels else carried


def summed_by_node(pairs: Pairs) -> Pairs:
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


def _numbers(name: str) -> Iterator[tuple[str, int]]:
    for match in [*_NUMBER.finditer(name)][: -_MOST_NUMBERS - 1 : -1]:
        yield f"{name[: match.start()]}*{name[match.end() :]}", int(match[0])


#: How many kinds of layers may alternate: attention in each eighth layer.
_MOST_KINDS = 8
#: Beside more siblings than this a star is not tried.
_MOST_SIBLINGS = 1000
_DIGITS, _MOST_DIGITS = re.compile(r"\d+"), 9


class Line(NamedTuple):
    """Modules that share a line of the tree, in pre-order."""

    rows: list[int]
    depth: int  # how far below the top they are
    copies: int  # how many siblings were folded
    label: str  # their names: ``layers_0 … 3``
    pattern: str  # their paths as a :class:`~tracekit.dataset.patterns.Pattern`
    star: str  # what stands for their names in :func:`patterns`


class Folding:
    """Folds siblings that are alike: of one series and class, with the same names and classes below.

    Numbers of names below may change as those of the siblings do: ``layers.3.mlp`` in ``layers.3``.
    """

    def __init__(self, modules: Hierarchy) -> None:
        self._names, self._series = modules.name, series(modules)
        self._size = (modules.end - np.arange(modules.end.size)).tolist()
        self._parents = parents = modules.parent.tolist()
        self._paths, self._own = modules.path, own_paths(modules)
        self._children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
        for row, parent in enumerate(parents):
            self._children[parent].append(row)
        kinds: dict[tuple[object, ...], int] = {}
        self._kind = [0] * len(parents)
        self._numbers: list[list[int]] = [[] for _ in parents]
        for row in reversed(range(len(parents))):
            name = self._names[row]
            if is_numbered(modules, row):
                name = ""
            elif modules.kind[row] == RANGE or self._series[row] is not None:
                self._numbers[row] = [int(number) for number in _DIGITS.findall(name)]
                name = _DIGITS.sub("*", name)
            below = tuple(self._kind[child] for child in self._children[row])
            kind = modules.kind[row], modules.class_name[row], name, below
            self._kind[row] = kinds.setdefault(kind, len(kinds))

    def lines(self, tops: list[int] | None = None) -> Iterator[Line]:
        """The lines, in pre-order: all, or those of some modules and what is below, folded as among all."""
        ahead = (self._folded([[row] for row in self._children[-1]], 0) if tops is None else self._tops(tops))[::-1]
        while ahead:
            line = ahead.pop()
            yield line
            below = [self._children[row] for row in line.rows]
            siblings = [[children[at] for children in below] for at in range(len(below[0]))]
            ahead += self._folded(siblings, line.depth + 1)[::-1]

    def _tops(self, tops: list[int]) -> list[Line]:
        line_of = {row: at for at, line in enumerate(self.lines()) for row in line.rows}
        groups: dict[int, list[list[int]]] = {}
        for row in tops:
            groups.setdefault(line_of[row], []).append([row])
        lines = [self._line(copies, [], 0) for copies in groups.values()]
        return lines if len(lines) == 1 else [line._replace(label=line.pattern) for line in lines]

    def _folded(self, siblings: list[list[int]], depth: int) -> list[Line]:
        members: list[list[list[int]]] = []
        #: The siblings of each series since one that is in none: series may alternate.
        by_series: dict[str, list[list[int]]] = {}
        for rows in [*siblings, None]:
            name = None if rows is None else self._series[rows[0]]
            if rows is not None and name is not None:
                by_series.setdefault(name, []).append(rows)
                continue
            lines = [line for alike in by_series.values() for line in self._runs(alike)]
            members += [*sorted(lines), *([] if rows is None else [[rows]])]
            by_series.clear()
        beside = [self._own[rows[0]] for rows in siblings]
        return [self._line(copies, beside, depth) for copies in members]

    def _runs(self, siblings: list[list[int]]) -> Iterator[list[list[int]]]:
        """The lines of a series: neighbours that are alike, or kinds that alternate."""
        start = 0
        while start < len(siblings):
            period, end = self._period(siblings, start)
            lines: list[list[list[int]]] = []
            for at in range(start, min(start + period, end)):
                alike = next((line for line in lines if self._alike(line[0][0], siblings[at][0])), None)
                lines += [[]] if alike is None else []
                (lines[-1] if alike is None else alike).extend(siblings[at:end:period])
            yield from map(sorted, lines)
            start = end

    def _period(self, siblings: list[list[int]], start: int) -> tuple[int, int]:
        """After how many siblings kinds repeat, so that most of them do, and where that ends."""
        period, end = 1, start
        for longer in range(1, _MOST_KINDS + 1):
            at = start + longer
            while at < len(siblings) and self._alike(siblings[at - longer][0], siblings[at][0]):
                at += 1
            if at > end and (longer == 1 or at - start >= 2 * longer):
                period, end = longer, at
        return period, end

    def _line(self, copies: list[list[int]], beside: list[str], depth: int) -> Line:
        rows = [row for copy in copies for row in copy]
        label = folded(self._names[rows[0]], self._names[rows[-1]])
        numbers, star = spelled([self._own[row] for row in rows])
        if star != numbers and len(copies) < len(beside):
            glob = star.replace("[", "[[]")
            is_exact = len(beside) <= _MOST_SIBLINGS and sum(fnmatchcase(own, glob) for own in beside) == len(copies)
            star = star if is_exact else numbers
        # As the first part, a star alone is all parts in front.
        star = numbers if star == "*" and not depth else star
        return Line(rows, depth, len(copies), label, self._pattern(rows), star)

    def _pattern(self, rows: list[int]) -> str:
        texts: list[str] = []
        while rows:
            texts.insert(0, spelled([self._own[row] for row in rows])[0])
            inside = [row for row in rows if self._parents[row] >= 0 and self._own[row] != self._paths[row]]
            rows = [*dict.fromkeys(self._parents[row] for row in inside)]
        return ".".join(texts)

    def _alike(self, first: int, second: int) -> bool:
        if self._kind[first] != self._kind[second]:
            return False
        numbers, others = (
            [n for own in self._numbers[row : row + self._size[row]] for n in own] for row in (first, second)
        )
        changes = {number - other for number, other in zip(numbers, others, strict=True)}
        return len(changes - {0}) <= 1


def folded(first: str, last: str) -> str:
    """The name of a line of layers: ``layer_0 … 3``, or both names where they differ in more than a number."""
    parts, others = (re.split(r"(\d+)", name) for name in (first, last))
    unlike = [at for at, pair in enumerate(zip(parts, others, strict=False)) if pair[0] != pair[1]]
    if first == last or len(parts) != len(others) or len(unlike) != 1 or unlike[0] % 2 == 0:
        return first if first == last else f"{first} … {last}"
    parts[unlike[0]] += f" … {others[unlike[0]]}"
    return "".join(parts)


def spelled(names: list[str]) -> tuple[str, str]:
    """Names that differ in numbers as a part of a pattern: with these numbers, ``layer_0…3``, and with stars."""
    columns = [set(values) for values in zip(*(re.split(r"([0-9]+)", name) for name in {*names}), strict=False)]
    changing = [at for at, values in enumerate(columns) if len(values) > 1]
    texts = ["*" if at in changing else values.pop() for at, values in enumerate(columns)]
    star = "".join(texts)
    if changing and max(map(len, columns[changing[0]])) <= _MOST_DIGITS:
        texts[changing[0]] = numbers_as_text(map(int, columns[changing[0]]))
    return "".join(texts), star


def own_paths(modules: Hierarchy) -> list[str]:
    """The path of each module below the one that holds it; whole where it does not begin with that one's."""
    paths, above = modules.path, [*modules.path, ""]
    return [path.removeprefix(f"{above[parent]}.") for path, parent in zip(paths, modules.parent.tolist(), strict=True)]


def patterns(modules: Hierarchy, paths: list[str] | None = None) -> list[str]:
    """For each module the pattern of its line in the tree: ``top.layers.*.mlp``.

    It has a star if that names the modules of the line and no others, otherwise their numbers: ``0…31``.

    Args:
        modules: The modules.
        paths: Their paths, if they are known by others than their own.
    """
    paths, own, answer = paths or modules.path, own_paths(modules), [""] * len(modules.path)
    for line in Folding(modules).lines():
        for row in line.rows:
            parent = int(modules.parent[row])
            above = f"{paths[parent]}." if parent >= 0 else ""
            star = line.star if paths[row] in (own[row], f"{above}{own[row]}") else paths[row]
            answer[row] = f"{answer[parent]}.{star}" if above and paths[row] == f"{above}{own[row]}" else star
    return answer
