"""What reports of a real H100 say of the programs that were recorded (``tests/gpu``)."""

from collections import Counter
from pathlib import Path

import pytest

import tracekit
from tests.command import ROOT
from tracekit.answers import budget
from tracekit.dataset.opening import Dataset

LAYERS = 4
COPY_OF_A_NUMBER = "[CUDA memcpy Device-to-Host]"


@pytest.fixture
def recorded(tmp_path: Path):
    return lambda name: tracekit.parse(ROOT / "data" / f"h100_{name}.sqlite", tmp_path / name)


def work_by_step(dataset: Dataset) -> list[Counter]:
    kernels = dataset.kernels(["module", "name", "kind", "step_id"])
    steps = kernels[kernels.step_id.notna()].groupby("step_id")
    return [Counter(zip(step.module, step.name, step.kind, strict=True)) for _, step in steps]


def test_a_replayed_graph_runs_the_kernels_of_an_eager_step_each_in_the_same_module(recorded) -> None:
    eager, replayed = work_by_step(recorded("eager")), work_by_step(recorded("graph"))
    assert len(eager) == len(replayed) == 12
    assert eager[0].total() == 45
    assert all(step == eager[0] for step in [*eager, *replayed])


def test_a_number_that_an_mlp_waits_for_is_copied_and_waited_for_in_it(recorded) -> None:
    waiting = recorded("item")
    more = work_by_step(waiting)[0] - work_by_step(recorded("eager"))[0]
    assert more == {(f"top.layers.{layer}.mlp", COPY_OF_A_NUMBER, "memcpy"): 1 for layer in range(LAYERS)}
    waits = waiting.table("waits", ["module", "name", "kind", "step_id"]).to_pandas()
    inside = waits[waits.step_id.notna() & (waits.kind == "synchronize")]
    assert set(inside.module) == {f"top.layers.{layer}.mlp" for layer in range(LAYERS)}
    assert len(inside) == 12 * LAYERS


def test_an_eager_step_is_bound_by_its_host_and_a_replayed_one_by_its_kernels(recorded) -> None:
    def shares(name: str) -> dict[str, float]:
        rows = budget.frame(recorded(name))
        return (rows.groupby("kind").ns.sum() / rows.ns.sum()).to_dict()

    eager, replayed = shares("eager"), shares("graph")
    assert eager["host_code"] + eager["launch"] > 0.7
    assert replayed["compute"] > 0.7


def test_work_of_a_backward_pass_belongs_to_the_module_of_its_forward_call(recorded) -> None:
    kernels = recorded("backward").kernels(["module", "name", "phase"])
    products = kernels[kernels.name.str.contains("gemm") & (kernels.phase == "forward")].groupby("module").size()
    sums = kernels[(kernels.name == "reduce_kernel") & (kernels.phase == "backward")].groupby("module").size()
    of_layers = {f"Chain.layers.{layer}.{part}": 3 for layer in (0, 1) for part in ("up", "down")}
    # A Linear multiplies once in each call, and sums the gradient of its bias once in the call's backward pass.
    assert products.to_dict() == sums.to_dict() == {"Chain.again": 6, **of_layers}
