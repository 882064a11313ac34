"""FLOPs of recorded models are those that torch counts, module by module, or not known."""

import importlib.util
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import tracekit
from tests.capture.places import Place
from tests.capture.truth import below, flops_of
from tracekit.answers import roofline
from tracekit.views.formatting import records

pytestmark = pytest.mark.torch

STEPS = 2
HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(1)
"""


def made(path: Path) -> tuple[torch.nn.Module, Any]:
    spec = importlib.util.spec_from_file_location("made", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make()


def counted(model: torch.nn.Module, inputs: Any, *, backward: bool) -> Counter[str | None]:
    def run() -> None:
        with torch.set_grad_enabled(backward):
            out = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        if backward:
            out.sum().backward()

    return flops_of(model, run, type(model).__name__)


def recorded(place: Place, text: str, *options: str) -> tuple[dict[str, dict], Counter[str | None]]:
    path = place.write(HEAD + textwrap.dedent(text))
    outcome = place.capture(f"{path}:make", "--steps", str(STEPS), "-o", "run", "--force", *options)
    assert outcome.code == 0, outcome
    rows = records(roofline.frame(tracekit.parse(place.folder / "run.sqlite", force=True)))
    torch.manual_seed(1)
    counts = counted(*made(path), backward="--backward" in options)
    return {row["path"]: row for row in rows}, counts


def check(rows: dict[str, dict], counts: Counter[str | None], *, unknown: tuple[str, ...] = ()) -> None:
    """Every module's figure is torch's; those that end in one of some names, and all above them, are not known."""
    without = [path for path in rows if path.endswith(unknown)] if unknown else []
    for path, row in rows.items():
        if any(one == path or one.startswith(f"{path}.") for one in without):
            assert row["subtree_flops"] is None, row
            assert row["unknown"], row
        else:
            assert row["subtree_flops"] == STEPS * below(path, counts), (path, row, counts)
            assert row["unknown"] is None
    assert len(rows) > 1


MODELS = {
    "mlp": """
        def make():
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)), torch.randn(2, 5, 4)
    """,
    "cnn": """
        def make():
            return nn.Sequential(
                nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), nn.BatchNorm1d(6), nn.GELU(),
                nn.Conv1d(6, 6, 4, padding='same', dilation=2), nn.ConvTranspose1d(6, 4, 3, groups=2, stride=2),
                nn.Conv1d(4, 2, 3, padding=1, padding_mode='reflect'), nn.MaxPool1d(2), nn.Flatten(), nn.LazyLinear(3),
            ), torch.randn(2, 4, 16)
    """,
    "encoder": """
        def make():
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            return nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 7, 16)
    """,
    "tokens": """
        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(20, 8)
                self.attn = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
                self.cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=10)
                self.norm = nn.RMSNorm(8)

            def forward(self, ids, key, value):
                x = self.embed(ids)
                x = self.norm(x + self.attn(x, x, x, need_weights=False)[0])
                return self.cross(x.transpose(0, 1), value=value, key=key)[0]

        def make():
            return Tokens(), (torch.arange(10).view(2, 5), torch.randn(9, 2, 6), torch.randn(9, 2, 10))
    """,
}


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_every_module_are_those_that_torch_counts(name: str, place: Place) -> None:
    # Without --ops, the fused operator of an encoder's layer is not known.
    check(*recorded(place, MODELS[name]), unknown=("layers.0", "layers.1") if name == "encoder" else ())


def test_a_backward_pass_without_marked_operators_is_not_known(place: Place) -> None:
    rows, counts = recorded(place, MODELS["mlp"], "--backward")
    check(rows, counts, unknown=(".0", ".2"))
    assert rows["Sequential.1"]["subtree_flops"] == 0
