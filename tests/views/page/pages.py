"""What a page holds, read back from its HTML, and the same worked out from the tables with pandas."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from tracekit.dataset.opening import Dataset
from tracekit.views.page.document import page

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def shown(dataset: Dataset, *before: Dataset) -> dict[str, Any]:
    return data_of(page(dataset, *before))


def data_of(html: bytes) -> dict[str, Any]:
    matches = _DATA.findall(html.decode())
    assert len(matches) == 1
    data: dict[str, Any] = json.loads(matches[0])
    return data


class Node(NamedTuple):
    """A node of one of the two lists, and the modules that it stands for or that are left out below it."""

    at: int
    path: str
    figures: dict[str, Any]
    children: list[int]


def nodes(columns: dict[str, list[Any]]) -> list[Node]:
    tree: list[Node] = []
    for at, name in enumerate(columns["name"]):
        parent = columns["parent"][at]
        path = f"{tree[parent].path}.{name}" if parent >= 0 else name
        tree.append(Node(at, path, {key: column[at] for key, column in columns.items()}, []))
        if parent >= 0:
            tree[parent].children.append(at)
    return tree


def reach(columns: dict[str, list[Any]]) -> list[set[int]]:
    places: list[set[int]] = [{at} for at in range(len(columns["name"]))]
    for at in reversed(range(len(places))):
        if columns["parent"][at] >= 0:
            places[columns["parent"][at]] |= places[at]
    return places


class Tables:
    """The tables of a dataset as pandas has them."""

    def __init__(self, dataset: Dataset) -> None:
        kernels = dataset.table("kernels")
        self.kernels = kernels.to_pandas()
        # Floats, which a column with nulls has, hold no nanoseconds since 1970.
        self.kernels["launch_start_ns"] = pd.array(kernels.column("launch_start_ns").to_pylist(), "Int64")
        self.calls = dataset.table("calls", ["module", "phase", "gpu_time_ns", "step_id"]).to_pandas()
        self.steps = dataset.table("steps").to_pandas()
        self.kernels["named"] = self.kernels["name"].astype(object).where(self.kernels["name"].notna(), None)


def pieces(drawn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    columns = drawn["pieces"]
    for at in range(len(columns["ns"])):
        yield {name: column[at] for name, column in columns.items()}
