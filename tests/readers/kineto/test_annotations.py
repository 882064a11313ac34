"""Work of CUDA graphs on which torch wrote its modules: events and the rows that they become."""

from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.golden import expect
from tests.needs import TRACES
from tests.readers.files import kernels
from tests.readers.kineto.traces import called, event, kernel, launch, marked, parsed
from tracekit.dataset.opening import Dataset

ATTENTION = {"module_fqn": "layers.0.attention", "module_type": "Attention"}
MLP = {"module_fqn": "layers.0.mlp", "module_type": "MLP"}


def replay(ts: float, correlation: int, *annotations: dict[str, object], dur: float = 20) -> list[Any]:
    rows = [event("cuda_runtime", "cudaGraphLaunch", ts, dur, correlation=correlation)]
    for node, args in enumerate(annotations):
        row = kernel(ts + 30 + 10 * node, correlation, **{"graph id": 3, "graph node id": (3 << 32) + node})
        rows.append(row | {"args": {**row["args"], **args}})  # type: ignore[dict-item]
    return rows


def shares(dataset: Dataset) -> list[dict[str, float]]:
    paths = dataset.table("modules", ["path"]).column("path").to_pylist()
    found: dict[int, dict[str, float]] = {}
    for row in dataset.table("kernel_modules").to_pylist():
        found.setdefault(row["kernel_id"], {})[paths[row["module_id"]]] = row["weight"]
    return [found[key] for key in sorted(found)]


def modules(dataset: Dataset) -> list[tuple[object, ...]]:
    return kernels(dataset, "module", "method")


def test_each_replay_is_a_call_of_each_of_its_modules_with_their_classes(tmp_path: Path) -> None:
    steps = [event("user_annotation", f"ProfilerStep#{at}", at * 100, 90) for at in range(2)]
    runs = [replay(at * 100 + 10, at + 1, ATTENTION, ATTENTION, MLP, {}) for at in range(2)]
    dataset = parsed(tmp_path, *steps, *runs[0], *runs[1])
    expected = [("layers.0.attention", "annotated")] * 2 + [("layers.0.mlp", "annotated"), (None, None)]
    assert modules(dataset) == expected * 2
    expect(dataset, "calls")(
        "module  step_id  phase\n"
        + "\n".join(f"layers.0.{name}  {step}  -" for name in ("attention", "mlp") for step in (0, 1))
    )
    classes = {row["path"]: row["class_name"] for row in dataset.table("modules").to_pylist()}
    assert classes == {"layers": None, "layers.0": None, "layers.0.attention": "Attention", "layers.0.mlp": "MLP"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"module_fqn": ["layers.0", "layers.0.attention"]}, {"layers.0.attention": 1.0}),
        ({"module_fqn": "['layers.0.q', 'layers.0.k']"}, {"layers.0.q": 0.5, "layers.0.k": 0.5}),
        ({"module_fqn": "head.a,head.b,head"}, {"head.a": 0.5, "head.b": 0.5}),
        ({"name": "layers.1", "module_type": "Block"}, {"layers.1": 1.0}),
        ({"module_fqn": "layers.1", "name": "phase_A"}, {"layers.1": 1.0}),
    ],
)
def test_the_innermost_of_several_names_counts_and_siblings_share(
    tmp_path: Path, args: dict[str, object], expected: dict[str, float]
) -> None:
    assert shares(parsed(tmp_path, *replay(10, 1, args))) == [expected]


@pytest.mark.parametrize("args", [{"name": "phase_A"}, {"module_fqn": ""}, {"module_fqn": "a..b"}, {"module_fqn": 3}])
def test_what_names_no_module_is_no_annotation(tmp_path: Path, args: dict[str, object]) -> None:
    assert modules(parsed(tmp_path, *replay(10, 1, args), rows="modules")) == [(None, None)]


def test_where_rows_are_operators_annotated_work_has_no_module(tmp_path: Path) -> None:
    siblings = {"module_fqn": ["layers.0.q", "layers.0.k"]}
    assert modules(parsed(tmp_path, *replay(10, 1, ATTENTION, siblings), rows="operators")) == [(None, None)] * 2


@pytest.mark.parametrize(
    ("calls", "path"),
    [
        ([called("Transformer_0", 0, 90)], "Transformer_0.layers.0.attention"),
        ([marked("model", 0, 90)], "model.layers.0.attention"),
        ([marked("layers.0", 0, 90)], "layers.0.attention"),
        ([marked("model", 0, 90), marked("model.layers", 1, 80)], "model.layers.0.attention"),
        ([marked("layers.0.attention", 0, 90)], "layers.0.attention"),
        (
            [event("user_annotation", path, at, 9 - at) for at, path in enumerate(("layers.0", "layers.0.attention"))],
            "layers.0.attention",
        ),
    ],
)
def test_annotations_and_calls_are_one_hierarchy(tmp_path: Path, calls: list[Any], path: str) -> None:
    direct = [launch(3, 9), kernel(5, 9)]
    dataset = parsed(tmp_path, *calls, *direct, *replay(10, 1, ATTENTION))
    assert modules(dataset)[1] == (path, "annotated")
    assert modules(dataset)[0][1] == "range"
    assert path in dataset.table("modules", ["path"]).column("path").to_pylist()


def test_a_replay_whose_call_is_too_short_for_its_modules_keeps_the_other_methods(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, marked("top", 0, 90), *replay(10, 1, ATTENTION, dur=0.002))
    assert modules(dataset) == [("top", "graph_launch")]


@pytest.mark.traces
def test_all_kernels_of_an_annotated_trace_have_their_modules(tmp_path: Path) -> None:
    dataset = tracekit.parse(TRACES / "kineto" / "annotated_graph_torch2.13.json", tmp_path / "out")
    assert {method for _, method in modules(dataset)} == {"annotated"}
    assert dataset.table("calls").num_rows == 24
    assert dataset.manifest["missing"] == []
