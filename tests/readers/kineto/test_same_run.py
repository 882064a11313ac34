"""One program means the same through tracekit's recorder, as a Chrome trace of torch.profiler, and through nsys."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.command import ROOT, separately

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

pytestmark = pytest.mark.torch
PROGRAM = "tests.readers.kineto.recorded_program"


class Annotations:
    """Emits markers as annotations of the user's own torch.profiler."""

    def __init__(self) -> None:
        from tracekit.capture.emit import new_lane

        self.lane = new_lane()
        self._open: list[object] = []
        self.close: Callable[[], object] = lambda: self._open.pop().__exit__(None, None, None)  # type: ignore[attr-defined]

    def opener(self, text: str, /) -> Callable[[], object]:
        from torch.profiler import record_function

        return partial(lambda: self._open.append(record_function(text).__enter__()))


def chrome_trace(path: Path) -> Path:
    from torch.profiler import ProfilerActivity, profile

    from tests.readers.kineto.recorded_program import marked
    from tracekit.capture.emit import routed_to

    settings = {"record_shapes": True, "acc_events": True}
    with routed_to(Annotations()), profile(activities=[ProfilerActivity.CPU], **settings) as recorded:
        marked()
    recorded.export_chrome_trace(str(path))
    return path


def captured(path: Path, *options: str) -> Path:
    outcome = separately("capture", *options, "-o", path, f"{PROGRAM}:main", cwd=ROOT)
    assert outcome.code == 0, outcome.err
    return path


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("chrome")
    return tracekit.parse(chrome_trace(folder / "trace.json"), folder / "out")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = captured(tmp_path_factory.mktemp("engine") / "run.sqlite", "--engine", "torch", "--ops")
    return tracekit.parse(path)


def calls(dataset: Dataset) -> list[tuple[object, ...]]:
    rows = sorted(dataset.table("calls").to_pylist(), key=lambda row: int(row["start_ns"]))
    call = {row["call_id"]: (row["module"], row["occurrence"]) for row in rows}
    names = ("module", "occurrence", "phase", "inputs", "outputs", "kwargs", "input_types", "output_types", "step_id")
    return [(*(str(row[name]) for name in names), call.get(row["parent_call_id"])) for row in rows]


def modules(dataset: Dataset) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = dataset.table("modules").drop(["module_id"]).to_pylist()
    return rows


def steps(dataset: Dataset) -> list[tuple[object, ...]]:
    """In order; their numbers go on from those of earlier tests in this process."""
    names = ("name", "kind", "batch_size", "tokens")
    return [tuple(row[name] for name in names) for row in dataset.table("steps").to_pylist()]


def operators(dataset: Dataset) -> Counter[tuple[object, ...]]:
    """Those in steps: what runs before is recorded by one of the two alone."""
    names = ("kind", "name", "module", "method", "cause", "phase", "op", "op_shapes", "step_id")
    rows = (row for row in dataset.table("kernels").to_pylist() if row["step_id"] is not None)
    return Counter(tuple(row[name] for name in names) for row in rows)


def test_the_recorder_and_a_chrome_trace_have_the_same_calls_and_operators(chrome: Dataset, engine: Dataset) -> None:
    assert calls(chrome) == calls(engine)
    assert modules(chrome) == modules(engine)
    assert steps(chrome) == steps(engine)
    assert operators(chrome) == operators(engine)
    assert {row[3] for row in operators(chrome)} >= {"range", "backward"}


@pytest.mark.nsys
def test_nsys_and_a_chrome_trace_have_the_same_calls(chrome: Dataset, tmp_path: Path) -> None:
    nsys = tracekit.parse(captured(tmp_path / "run.sqlite", "--engine", "nsys"))
    # A Chrome trace has sequence numbers, too, which tell the backward pass.
    assert [row for row in calls(chrome) if row[2] != "backward"] == calls(nsys)
    assert modules(chrome) == modules(nsys)
    assert steps(chrome) == steps(nsys)
