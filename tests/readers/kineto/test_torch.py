"""Traces of models that are recorded here: their modules and FLOPs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.readers.files import kernels
from tracekit.dataset.opening import Dataset

if TYPE_CHECKING:
    from torch import Tensor, nn

pytestmark = pytest.mark.torch

PHASES = ("forward", "recompute")
NAMES = ("aten::addmm", "AddmmBackward0")


def model() -> nn.Module:
    """Siblings of one class, a shared module, and modules called in another order than registered."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.first, self.second, self.shared = nn.Linear(8, 8), nn.Linear(8, 8), shared

        def forward(self, x: Tensor) -> Tensor:
            return self.shared(self.first(self.second(x)).relu())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Linear(8, 8)
            self.layers = nn.ModuleList([Block(shared) for _ in range(2)])
            self.head = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
            self.nothing = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            for layer in reversed(self.layers):
                x = layer(x)
            return self.head(self.nothing(self.nothing(x)))

    return Net()


def profiled(path: Path, net: nn.Module) -> Path:
    import torch
    from torch.profiler import ProfilerActivity, profile

    inputs = torch.randn(3, 8)
    # Without acc_events, torch 2.11 warns that it keeps the events of one cycle only.
    settings = {"with_stack": True, "record_shapes": True, "acc_events": True}
    with profile(activities=[ProfilerActivity.CPU], **settings) as recorded:
        for _ in range(2):
            net(inputs).sum().backward()
    recorded.export_chrome_trace(str(path))
    return path


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("stacks")
    return tracekit.parse(profiled(folder / "trace.json.gz", model()), folder / "out")


def test_modules_of_eager_models_stand_where_they_ran(stacks: Dataset) -> None:
    paths = [row["path"] for row in stacks.table("modules").to_pylist()]
    inner = ["Block_0", "Block_0.Linear_0", "Block_0.Linear_1", "Block_0.Linear_2", "Block_1", "Block_1.Linear_2"]
    inner += ["Block_1.Linear_3", "Block_1.Linear_4", "Identity_0", "Sequential_0", "Sequential_0.Linear_5"]
    assert sorted(paths) == ["Net_0", *(f"Net_0.{path}" for path in [*inner, "Sequential_0.ReLU_0"])]
    calls = Counter(row["module"] for row in stacks.table("calls").to_pylist() if row["phase"] == "forward")
    assert calls == Counter(paths * 2 + ["Net_0.Identity_0"] * 2)


def test_modules_that_run_again_for_the_backward_pass_are_the_same_modules(tmp_path: Path) -> None:
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.layer, x.requires_grad_(), use_reentrant=False)

    dataset = tracekit.parse(profiled(tmp_path / "trace.json", Net()), tmp_path / "out")
    rows = dataset.table("calls").to_pylist()
    calls = Counter((row["module"], row["phase"]) for row in rows if row["phase"] != "backward")
    layer = "Net_0.Sequential_0"
    run_again = [layer, f"{layer}.Linear_0", f"{layer}.ReLU_0"]
    assert calls == Counter([("Net_0", "forward"), *((path, phase) for path in run_again for phase in PHASES)] * 2)
    work = Counter(phase for phase, op in kernels(dataset, "phase", "op") if op == "aten::addmm")
    assert work["forward"] == work["recompute"] > 0


def test_backward_work_of_eager_models_belongs_to_the_module_of_its_forward(stacks: Dataset) -> None:
    rows = kernels(stacks, "module", "name", "method")
    backward = Counter((module, name) for module, name, method in rows if method == "backward")
    linears = [f"Net_0.{name}" for name in ("Block_0.Linear_1", "Block_1.Linear_2", "Sequential_0.Linear_5")]
    assert all(backward[linear, "AddmmBackward0"] == 2 for linear in linears)
    assert backward["Net_0.Block_0", "ReluBackward0"] == backward["Net_0.Sequential_0.ReLU_0", "ReluBackward0"] == 2
    of_name = {wanted: {module for module, name, _ in rows if name == wanted} for wanted in NAMES}
    assert of_name["aten::addmm"] == of_name["AddmmBackward0"]


def test_operators_tell_the_flops_of_modules_and_the_dtype_that_they_multiply_in(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    from tracekit.answers import roofline

    net, inputs = model().bfloat16(), torch.randn(3, 8, dtype=torch.bfloat16)
    with FlopCounterMode(display=False) as counter:
        net(inputs)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True, acc_events=True) as recorded:
        net(inputs)
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    dataset = tracekit.parse(tmp_path / "trace.json", tmp_path / "out")
    rows = roofline.frame(dataset).set_index("path")
    counts = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    linears = rows[rows.index.str.contains("Linear_")]
    assert int(linears.flops.sum()) == counts["Global"] == counter.get_total_flops()
    assert set(linears.dtype) == {"bfloat16"}
    assert int(linears.flops["Net_0.Sequential_0.Linear_5"]) == counts["Net.head.0"]
    types = {types for types, op in kernels(dataset, "op_types", "op") if op == "aten::addmm"}
    assert types == {'["bfloat16", "bfloat16", "bfloat16", "", ""]'}
