"""What was not marked is counted by cause; layers that torch fuses stay fused."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.profiler import profile

import tracekit
from tests.capture.models import tree
from tests.capture.places import Place
from tracekit.capture import MemoryEmitter, layer_markers
from tracekit.capture.layers import inventory

pytestmark = pytest.mark.torch
FUSED = "aten::_transformer_encoder_layer_fwd"
X = torch.randn(2, 5, 8)


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
    with layer_markers(model, emitter=MemoryEmitter()) as handle, torch.no_grad():
        model(torch.zeros(1, 4))
    assert handle.inventory == {"marked": 4, "skipped_types": 1, "compiled": 1, "not_called": 1}


#: Programs, each with what is said of their modules, and how often modules are called in them.
PROGRAMS = {
    "a model that is gone in the end": (
        """
def main():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ModuleList([nn.Linear(4, 4)])[0])
    model.idle = nn.Linear(4, 4)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    model(x)
    del model.forward
main()
""",
        "3 called; not marked: 1 Dropout or Identity, which compute next to nothing, 1 not called\n",
        {"Sequential": 1, "Sequential.0": 1, "Sequential.2": 1},
    ),
    "models that share a part": (
        """
class Net(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.trunk[0](x))
trunk = nn.ModuleList([nn.Linear(4, 4)])
actor, critic = Net(trunk), Net(trunk)
actor(x), critic(x)
""",
        "5 called, 1 container\n",
        {"Net": 1, "Net.trunk.0": 1, "Net.head": 1, "Net_2": 1, "Net_2.0": 1, "Net_2.head": 1},
    ),
    "layers that are made anew in every call": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
    def forward(self, x, y):
        return nn.CrossEntropyLoss()(self.head(nn.LayerNorm(4)(x)), y)
net, y = Net(), torch.zeros(2, dtype=torch.long)
for _ in range(3): net(x, y), nn.CrossEntropyLoss()(torch.zeros(2, 2), y)
""",
        "3 called\n",
        {"Net": 3, "Net.head": 3, "CrossEntropyLoss": 3},
    ),
}


def test_a_part_of_two_models_is_counted_once() -> None:
    part, to = nn.Linear(4, 4), MemoryEmitter()
    one, other = nn.Sequential(part), nn.Sequential(part)
    with layer_markers(one, "one", emitter=to) as first, layer_markers(other, "other", emitter=to) as second:
        one(torch.zeros(1, 4)), other(torch.zeros(1, 4))
    assert inventory([first, second]) == {"marked": 3}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_modules_of_a_program_are_counted(place: Place, program: str) -> None:
    text, said, calls = PROGRAMS[program]
    place.write(f"import torch\nfrom torch import nn\nx = torch.zeros(2, 4)\n{text}")
    summary = place.capture("-o", "run.sqlite", "model.py").err
    assert f"modules: {said}" in summary
    assert "warning" not in summary
    assert Counter(tracekit.parse("run.sqlite").calls(["module"]).module) == calls


def test_layers_run_their_fused_operator_in_one_marked_call() -> None:
    model, to = nn.TransformerEncoder(layer(), 2).eval(), MemoryEmitter()
    with layer_markers(model, emitter=to) as handle:
        assert FUSED in operators(model, X)
    assert tree(to) == ["top", "  top.layers.0", "  top.layers.1"]
    assert handle.inventory["fused"] == 18
    assert FUSED in operators(model, X)
