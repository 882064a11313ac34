"""Real reports without module markers: the hierarchy of their ranges holds what NVIDIA's own reports say of them."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.attribution.test_real_traces import BACKTRACES, ORACLES, nvidias_name
from tests.needs import TRACES
from tracekit.dataset.opening import Dataset

pytestmark = pytest.mark.traces

#: Text of the range with its domain, process, thread, name of the kernel.
Key = tuple[str, int, int, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@cache
def keyed_by_ranges(report: Path, folder: Path) -> Dataset:
    return tracekit.parse(report, folder / f"{report.stem}.tracekit", rows="ranges")


def subtree_sums(dataset: Dataset) -> Iterator[tuple[Key, int]]:
    """For every kernel and every call on its thread that it was launched in: the key and how long it ran."""
    calls = {row["call_id"]: row for row in rows(dataset, "calls", "call_id", "parent_call_id", "range_id")}
    ranges = {row["range_id"]: row for row in rows(dataset, "ranges", "range_id", "domain", "text", "pid", "tid")}
    for kernel in rows(dataset, "kernels", "kind", "full_name", "dur_ns", "call_id", "tid"):
        at = kernel["call_id"] if kernel["kind"] == "kernel" else None
        while at is not None and (around := ranges[calls[at]["range_id"]])["tid"] == kernel["tid"]:
            text = nvidias_name(around["domain"], around["text"])
            yield (text, around["pid"], around["tid"], kernel["full_name"]), kernel["dur_ns"]
            at = calls[at]["parent_call_id"]


def rows(dataset: Dataset, table: str, *columns: str) -> list[dict[str, Any]]:
    return dataset.table(table, [*columns]).to_pylist()


def sum_by_key(pairs: Iterable[tuple[Key, int]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for key, lasting in pairs:
        total[key] += lasting
    return total


@pytest.mark.parametrize("name", ORACLES)
def test_kernels_of_every_range_and_all_inside_are_those_that_nvidia_counts(name: str, folder: Path) -> None:
    expected: Counter[Key] = Counter()
    with (TRACES / "oracle" / f"{name}.nvtx_kern_sum.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["NVTX Range"]:
                key = row["NVTX Range"], int(row["PID"]), int(row["TID"]), row["Kernel Name"]
                # NVIDIA counts class-67 rows a second time.
                expected[key] += int(row["Total Time (ns)"]) // (2 if name == BACKTRACES else 1)
    assert sum_by_key(subtree_sums(keyed_by_ranges(TRACES / "nsys" / f"{name}.sqlite", folder))) == expected


def test_ranges_of_fsdp_are_nodes_with_a_phase(folder: Path) -> None:
    dataset = keyed_by_ranges(TRACES / "nsys" / "fsdp_2rank_h100_v2026.2.sqlite", folder)
    names = {name for name in dataset.modules().name if name.startswith("FSDP::pre_forward")}
    assert names == {f"FSDP::pre_forward (blocks.{layer})" for layer in range(3, 20)}
    kernels = dataset.kernels(["module", "phase"])
    assert set(kernels.phase[kernels.module.str.startswith("FSDP::pre_forward", na=False)]) == {"forward"}


def test_layers_of_tensorrt_are_a_tree_of_modules(folder: Path) -> None:
    modules = keyed_by_ranges(TRACES / "nsys" / "tensorrt_startend_v2022.4.sqlite", folder).modules()
    engine = "find_centers.TensorRT:ExecutionContext::execute"
    assert engine in set(modules.path)
    paths = set(modules.path[modules.kind == "module"])
    assert {f"{engine}.blocks.{block}.19.fc" for block in (0, 1)} <= paths
    layer = "TensorRT:/blocks.0/blocks.0.4/Conv + /blocks.0/blocks.0.6/Relu"
    assert f"{engine}.blocks.0.{layer}" in set(modules.path)
