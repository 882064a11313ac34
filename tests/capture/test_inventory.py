"""What was not marked is counted by cause, and layers that markers would unfuse are told or kept."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.profiler import profile

import tracekit
from tests.capture import places
from tests.capture.models import tree
from tracekit.capture import Listed, layer_markers
from tracekit.capture.fused import can_fuse, would_fuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.places import Place

pytestmark = pytest.mark.torch
FUSED = "aten::_transformer_encoder_layer_fwd"
X = torch.randn(2, 5, 8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


class Late(nn.Module):
    """Modules that run compiled, are skipped, are made during the first call, and never run."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.idle = nn.Linear(4, 4), nn.Dropout(), nn.ModuleList([nn.ReLU()])
        self.compiled = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
        self.late: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.late is None:
            self.late = nn.Linear(4, 4)
        return self.late(self.compiled(self.drop(self.up(x))))


def layer(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()


def operators(model: nn.Module, *args: object) -> set[str]:
    with profile() as trace, torch.no_grad():
        model(*args)
    return {event.key for event in trace.key_averages()}


def test_modules_are_counted_by_what_became_of_them() -> None:
    model = Late()
    with layer_markers(model, emitter=Listed()) as handle, torch.no_grad():
        model(torch.zeros(1, 4))
    assert handle.inventory == {"marked": 3, "skipped": 1, "compiled": 1, "created_later": 1, "not_called": 1}


LOCAL = """
import torch
from torch import nn

def main():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ModuleList([nn.Linear(4, 4)])[0])
    model.idle = nn.Linear(4, 4)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    model(torch.zeros(2, 4))
    del model.forward

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("target", [["model.py:main"], ["model.py"], ["--", sys.executable, "model.py"]], ids=" ".join)
def test_the_modules_of_a_model_that_is_gone_in_the_end_are_counted(place: Place, target: list[str]) -> None:
    place.write(LOCAL)
    summary = place.capture("-o", "run.sqlite", *target).err
    assert "recorded 3 modules; not marked: 1 skipped by name, type or depth, 1 not called\n" in summary
    assert "warning" not in summary


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_model_in_torchscript_is_warned_about_in_one_line(place: Place) -> None:
    place.write("import torch\ndef make(): return torch.jit.script(torch.nn.Linear(4, 4)), torch.zeros(2, 4)\n")
    outcome = place.capture("model.py:make")
    warnings = [line for line in outcome.err.splitlines() if "warning" in line]
    assert warnings == [
        "tracekit: warning: no module ran marked, so the report has no hierarchy of modules: 1 in TorchScript, which "
        "accepts no hooks"
    ]


def test_the_summary_says_what_ran_unmarked(place: Place) -> None:
    place.write(f"from {__name__} import Late\nimport torch, sys\nLate()(torch.zeros(1, 4))\nsys.exit(0)\n")
    said = place.capture("model.py", "--skip", "*.up").err
    assert "recorded 2 modules; not marked: 1 inside compiled code, 2 skipped by name, type or depth, 1 created" in said


def test_markers_that_switch_a_fused_path_off_are_told_of(place: Place) -> None:
    place.write(f"from {__name__} import layer, X\ndef make(): return layer(), X\n")
    warnings = [line for line in place.capture("model.py:make").err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "switched off the fused path of 1 layers" in warnings[0]
    assert "--keep-fused" in warnings[0]
    assert "fused_path_off" in set(tracekit.parse(place.folder / "make.sqlite").coverage().cause)
    assert "warning" not in place.capture("model.py:make", "--keep-fused", "-f").err


def test_kept_layers_run_their_fused_operator_in_one_marked_call() -> None:
    model, to = nn.TransformerEncoder(layer(), 2).eval(), Listed()
    with layer_markers(model, emitter=to, keep_fused=True) as handle:
        assert FUSED in operators(model, X)
    assert tree(to) == ["top", "  top.layers.0", "  top.layers.1"]
    assert (handle.fused_paths_off, handle.inventory["fused"]) == (0, 18)
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())
    assert FUSED in operators(model, X)


CASES = {
    "as it is": (layer(), (X,)),
    "in training": (layer().train(), (X,)),
    "post norm with gelu": (layer(activation="gelu", norm_first=True), (X,)),
    "another activation": (layer(activation=torch.tanh), (X,)),
    "without bias": (layer(bias=False), (X,)),
    "odd heads": (nn.TransformerEncoderLayer(6, 3, 16, batch_first=True).eval(), (torch.randn(2, 5, 6),)),
    "not batched": (layer(), (X[0],)),
    "sequence first": (nn.TransformerEncoderLayer(8, 2, 16).eval(), (X,)),
    "masked": (layer(), (X, torch.zeros(5, 5, dtype=torch.bool))),
    "in double precision": (layer().double(), (X.double(),)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("case", CASES)
def test_whether_a_layer_would_be_fused_is_what_torch_does(case: str) -> None:
    model, args = CASES[case]
    with torch.no_grad():
        expected = can_fuse(model) and would_fuse(model, args, {})
    assert expected == (FUSED in operators(model, *args))


def test_with_gradients_nothing_is_fused() -> None:
    assert not would_fuse(layer(), (X,), {})
