"""Small reports that are changed by some SQL, and what came of them."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.sqlite import writing
from tracekit.dataset.opening import Dataset

LINES = """
    domain 1   -9   -  2 NCCL
    range  1   -5 100  {'Module': 'top', 'Inputs': [[2, 3]]}
    range@2 1  10  50  {'Module': 'top.a'}
    launch 1   20  25  #1
    kernel 1  900 950  #1 gemm
    launch 1   60  65  #2
    memcpy 1  960 970  #2 64
    launch 1   70  75  #3
    memset 1  970 975  #3 8
    launch 1   80  85  #4 cudaGraphLaunch_v10000
    graph  1  980 990  #4
    async  1   30  95  loose
"""
TABLES = ("modules", "calls", "kernels", "kernel_modules", "api_calls", "waits", "ranges", "steps", "coverage")

#: The fixture ``rewritten``: parses a report after some SQL was run on it.
Rewrite = Callable[..., Dataset]


def changed(path: Path, sql: str) -> None:
    with writing(path) as db:
        db.executescript(sql)


def rows(dataset: Dataset) -> dict[str, list[dict]]:
    return {name: dataset.table(name).to_pylist() for name in TABLES}


def kernels(dataset: Dataset, *columns: str) -> list[Any]:
    """Columns of kernels in the order in which they ran; one column by itself."""
    rows = sorted(dataset.table("kernels").to_pylist(), key=lambda row: (row["start_ns"], row["kernel_id"]))
    return [row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns) for row in rows]


def lacks(dataset: Dataset) -> set[str]:
    return {lack["what"] for lack in dataset.manifest["missing"]}


def state(folder: Path) -> dict[str, tuple[str, int]]:
    return {path.name: (sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in folder.iterdir()}
