"""Hierarchies of modules in Chrome traces with GPU work: a real one, and one written here."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.needs import TRACES
from tests.readers.kineto.traces import event, kernel, launch
from tracekit.errors import ReportError
from tracekit.pipeline.module_hierarchies import write_module_hierarchies

TOP = "TOP(top)::forward."


def written(path: Path, events: Sequence[dict[str, Any]]) -> Path:
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in events)
    path.write_bytes(gzip.compress(f'{{"schemaVersion":1,"traceEvents":[\n{lines}\n]}}\n'.encode()))
    return path


def with_hierarchies(path: Path) -> list[dict[str, Any]]:
    write_module_hierarchies(path)
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def test_kernels_and_operators_name_the_modules_that_launched_them(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "{'Module': 'top'}", 0, 100),
        event("user_annotation", "{'Module': 'top.fc'}", 10, 20),
        event("cpu_op", "aten::linear", 12, 10),
        event("cpu_op", "aten::add", 40, 10),
        launch(13, 1),
        launch(41, 2),
        launch(200, 3),
        kernel(50, 1),
        kernel(60, 2),
        kernel(300, 3),
        event("cpu_op", "aten::mul", 199, 10),
    ]
    told = [one["args"].get("Module Hierarchy") for one in with_hierarchies(written(tmp_path / "t.json.gz", events))]
    fc = f"{TOP}fc()::forward."
    assert told == [None, None, fc, TOP, None, None, None, fc, TOP, None, None]


def test_a_trace_with_impossible_times_stays_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json.gz", [event("cpu_op", "a", 1, 1), event("cpu_op", "b", 1e300, 1)])
    before = path.read_bytes()
    with pytest.raises(ReportError, match="times"):
        write_module_hierarchies(path)
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (before, 1)


@pytest.mark.traces
def test_kernels_of_a_real_trace_name_the_modules_that_parse_gives_them(tmp_path: Path) -> None:
    real = TRACES / "kineto" / "vllm_eager_b200.json.gz"
    path = written(tmp_path / "t.json.gz", json.loads(gzip.decompress(real.read_bytes()))["traceEvents"])
    kernels = tracekit.parse(path, tmp_path / "out").table("kernels", ["module", "kind"]).to_pylist()
    known = Counter(row["module"] for row in kernels)
    categories = ("kernel", "gpu_memcpy", "gpu_memset")
    told = Counter(
        one["args"].get("Module Hierarchy") for one in with_hierarchies(path) if one.get("cat") in categories
    )
    assert len(known) > 10
    assert sorted(told.values()) == sorted(known.values())
