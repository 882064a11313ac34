"""The hierarchy with its times, layers that are alike folded into one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses import modules_by_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.dataset import Dataset

NAME = "tree"


class _Line(NamedTuple):
    """Modules that one line stands for, in pre-order; the first is shown."""

    rows: list[int]
    depth: int
    copies: int
    label: str


def frame(dataset: Dataset) -> pd.DataFrame:
    """The hierarchy in pre-order. Numbered siblings that follow each other and are alike inside share a line.

    Returns:
        A row per line: ``label``, ``path`` (of the first module), ``class_name``, ``depth``, ``copies`` (how many
        siblings were folded), and summed over all modules of the line ``calls``, ``kernels``, ``self_ns``,
        ``inclusive_ns`` and ``share`` (of all time, known or not).
    """
    modules = dataset.table("modules", ["module_id", "path", "name", "parent_id", "subtree_end_id"])
    times = (
        modules_by_time.frame(dataset).set_index("path").reindex(modules.column("path").to_pylist())
    )
    lines = list(_Folding(modules.to_pydict(), times["class_name"].to_list()).lines())
    sums = {
        column: [times[column].to_numpy()[line.rows].sum() for line in lines]
        for column in ("calls", "kernels", "self_ns", "inclusive_ns", "share")
    }
    first = [line.rows[0] for line in lines]
    return pd.DataFrame(
        {
            "label": [line.label for line in lines],
            "path": times.index.to_numpy()[first],
            "class_name": times["class_name"].to_numpy()[first],
            "depth": np.array([line.depth for line in lines], dtype=np.int64),
            "copies": np.array([line.copies for line in lines], dtype=np.int64),
            **sums,
        }
    )


class _Folding:
    """Finds siblings that are alike: the same class, and the same names and classes below."""

    def __init__(self, modules: dict[str, list[object]], classes: list[str | None]) -> None:
        self._names = [str(name) for name in modules["name"]]
        parents = [-1 if parent is None else int(str(parent)) for parent in modules["parent_id"]]
        self._children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
        for row, parent in enumerate(parents):
            self._children[parent].append(row)
        kinds: dict[tuple[object, ...], int] = {}
        self._kind = [0] * len(parents)
        for row in reversed(range(len(parents))):
            below = tuple((self._names[child], self._kind[child]) for child in self._children[row])
            self._kind[row] = kinds.setdefault((classes[row], below), len(kinds))

    def lines(self) -> Iterator[_Line]:
        """The lines, in pre-order."""
        ahead = self._folded([[row] for row in self._children[-1]], 0)[::-1]
        while ahead:
            line = ahead.pop()
            yield line
            below = [self._children[row] for row in line.rows]
            alike = [[children[at] for children in below] for at in range(len(below[0]))]
            ahead += self._folded(alike, line.depth + 1)[::-1]

    def _folded(self, siblings: list[list[int]], depth: int) -> list[_Line]:
        """Siblings (each already a line of several parents), runs of alike ones made one."""
        found: list[_Line] = []
        for rows in siblings:
            name, last = self._names[rows[0]], found[-1] if found else None
            if last is not None and self._alike(last.rows[0], rows[0]):
                begin = last.label.partition(" ")[0]
                found[-1] = _Line(last.rows + rows, depth, last.copies + 1, f"{begin} … {name}")
            else:
                found.append(_Line(rows, depth, 1, name))
        return found

    def _alike(self, one: int, other: int) -> bool:
        numbered = self._names[one].isdecimal() and self._names[other].isdecimal()
        return numbered and self._kind[one] == self._kind[other]
