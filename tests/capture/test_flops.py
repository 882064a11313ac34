"""FLOPs of recorded models are those that torch counts, module by module, or not known."""

from __future__ import annotations

import importlib.util
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tracekit
from tests.capture.places import place
from tracekit.analyses import roofline
from tracekit.views.wording import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.places import Place

pytestmark = pytest.mark.torch

STEPS = 2
#: Torch counts fused attention on a CPU from 2.14 on.
_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FUSED_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
NOT_COUNTED = dict.fromkeys((_FUSED, _FUSED_BACKWARD), lambda *_, **__: 0)
HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from place(tmp_path, monkeypatch)


def made(path: Path) -> tuple[torch.nn.Module, Any]:
    spec = importlib.util.spec_from_file_location("made", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make()


def called(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def counted(model: torch.nn.Module, inputs: Any, *, backward: bool) -> dict[str, int]:
    """Torch's own count of one step by path."""
    # Of a model with hooks torch does not take its fast path, which nobody counts.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with (
        FlopCounterMode(display=False, custom_mapping=NOT_COUNTED) as counter,
        torch.set_grad_enabled(backward),
    ):
        out = called(model, inputs)
        if backward:
            (out[0] if isinstance(out, tuple) else out).sum().backward()
    torch.backends.mha.set_fastpath_enabled(fast)
    by_name = {name: sum(its.values()) for name, its in counter.get_flop_counts().items()}
    root = type(model).__name__
    return {
        root + name.removeprefix(root): by_name.get(root + name.removeprefix(root), 0)
        for name in (root, *(f"{root}.{name}" for name, _ in model.named_modules() if name))
    }


def recorded(here: Place, text: str, *options: str) -> tuple[dict[str, dict], dict[str, int]]:
    """What is answered of a recorded model by path, and what torch counts."""
    path = here.write(HEAD + textwrap.dedent(text))
    outcome = here.capture(f"{path}:make", "--steps", str(STEPS), "-o", "run", "--force", *options)
    assert outcome.code == 0, outcome
    rows = records(roofline.frame(tracekit.parse(here.folder / "run.sqlite", force=True)))
    torch.manual_seed(1)
    counts = counted(*made(path), backward="--backward" in options)
    return {row["path"]: row for row in rows}, counts


def check(rows: dict[str, dict], counts: dict[str, int], *, unknown: tuple[str, ...] = ()) -> None:
    """Every module's figure is torch's; those that end in one of some names, and all above them, are not known."""
    without = [path for path in rows if path.endswith(unknown)] if unknown else []
    for path, row in rows.items():
        if any(one == path or one.startswith(f"{path}.") for one in without):
            assert row["inclusive_flops"] is None, row
            assert row["unknown"], row
        else:
            assert row["inclusive_flops"] == STEPS * counts[path], (path, row, counts[path])
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
    "images": """
        def make():
            return nn.Sequential(
                nn.Conv2d(3, 8, (3, 5), padding='valid'), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, groups=8),
                nn.ConvTranspose2d(8, 5, 2, stride=2, output_padding=1, dilation=2),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(5, 2), nn.Softmax(-1),
            ), torch.randn(2, 3, 12, 14)
    """,
    "volumes": """
        def make():
            return nn.Sequential(
                nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.ConvTranspose3d(4, 2, 2), nn.Dropout3d(),
            ), torch.randn(1, 2, 5, 6, 7)
    """,
    "unbatched": """
        def make():
            return nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(0), nn.Linear(24, 5)), torch.randn(3, 8)
    """,
    "encoder, training": """
        def make():
            layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1)
            return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(7, 3, 16)
    """,
    "encoder": """
        def make():
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            return nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 7, 16)
    """,
    "attention with weights": """
        class Weights(nn.Module):
            def __init__(self):
                super().__init__()
                self.attn = nn.MultiheadAttention(8, 2)

            def forward(self, x):
                return self.attn(x, x, x)[1]

        def make():
            return Weights().eval(), torch.randn(5, 2, 8)
    """,
    "transformer": """
        def make():
            model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
            return model, (torch.randn(3, 7, 16), torch.randn(3, 5, 16))
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
LLAMA = """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))

            def forward(self, x, mask=None):
                q, k, v = (one(x).view(*x.shape[:2], 4, 4).transpose(1, 2) for one in (self.q, self.k, self.v))
                weights = (q @ k.transpose(2, 3) / 2).softmax(-1)
                return self.o((weights @ v).transpose(1, 2).reshape(x.shape))

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.attn = nn.RMSNorm(16), Attention()
                self.gate, self.up, self.down = nn.Linear(16, 40), nn.Linear(16, 40), nn.Linear(40, 16)
                self.act = nn.SiLU()

            def forward(self, x):
                x = x + self.attn(self.norm(x))
                return x + self.down(self.act(self.gate(x)) * self.up(x))

        class Llama(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.layers = nn.Embedding(50, 16), nn.ModuleList([Layer(), Layer()])
                self.head = nn.Linear(16, 50, bias=False)

            def forward(self, ids):
                x = self.embed(ids)
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)

        def make():
            return Llama(), torch.arange(12).view(2, 6)
"""


#: The same with torch's own attention, of which flop_counter counts nothing on a CPU.
FUSED = LLAMA.replace(
    """weights = (q @ k.transpose(2, 3) / 2).softmax(-1)
                return self.o((weights @ v).transpose""",
    "return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose",
)
assert FUSED != LLAMA


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_every_module_are_those_that_torch_counts(name: str, here: Place) -> None:
    check(*recorded(here, MODELS[name]))


@pytest.mark.parametrize("text", [LLAMA, FUSED], ids=["products", "fused"])
def test_attention_of_another_class_is_not_known_and_its_linears_are(text: str, here: Place) -> None:
    rows, counts = recorded(here, text)
    check(rows, counts, unknown=(".attn",))
    linears = sum(STEPS * counts[path] for path, row in rows.items() if row["class_name"] == "Linear")
    assert rows["Llama"]["known_flops"] == linears
    assert 0 < rows["Llama"]["known_share"] < 1


@pytest.mark.parametrize("text", [LLAMA, FUSED], ids=["products", "fused"])
def test_marked_operators_tell_the_flops_of_any_class(text: str, here: Place) -> None:
    rows, counts = recorded(here, text, "--ops")
    check(rows, counts)
    assert rows["Llama.layers.0.attn"]["source"] == "operators"


@pytest.mark.parametrize("name", ["mlp", "encoder, training", "tokens", "images"])
def test_with_marked_operators_models_cost_the_same(name: str, here: Place) -> None:
    check(*recorded(here, MODELS[name], "--ops"))


#: Attention of width 32 in every way: batch first or not, its weights returned or not, of itself and of another.
ATTENTIONS = """
        class Attentions(nn.Module):
            def __init__(self):
                super().__init__()
                for name in WAYS:
                    setattr(self, name, nn.MultiheadAttention(32, 4, batch_first="first" in name))

            def forward(self, x, y):
                for name in WAYS:
                    queries, keys = (x, y if "cross" in name else x)
                    if "first" not in name:
                        queries, keys = queries.transpose(0, 1), keys.transpose(0, 1)
                    getattr(self, name)(queries, keys, keys, need_weights="weights" in name)
                return x

        WAYS = [
            f"{place}_{weights}_{source}"
            for place in ("first", "second")
            for weights in ("weights", "none")
            for source in ("same", "cross")
        ]

        def make():
            return Attentions().train(TRAIN), (torch.randn(10, 5, 32), torch.randn(10, 7, 32))
"""


@pytest.mark.parametrize("options", [(), ("--ops",)], ids=["shapes", "operators"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_attention_costs_the_same_by_shapes_and_by_operators_fused_or_not(
    training: bool,
    options: tuple[str, ...],
    here: Place,
) -> None:
    rows, counts = recorded(here, ATTENTIONS.replace("TRAIN", str(training)), *options)
    check(rows, counts)
    batch, queries, width = 10, 5, 32
    for path, row in rows.items():
        if row["class_name"] == "MultiheadAttention":
            keys = 7 if path.endswith("cross") else queries
            projections = 2 * batch * (2 * queries + 2 * keys) * width * width
            scores_and_values = 4 * batch * queries * keys * width if "weights" in path else 0
            assert row["flops"] == STEPS * (projections + scores_and_values)


ENCODER_LAYER = """
        def make():
            return nn.TransformerEncoderLayer(32, 4, 64, batch_first=FIRST).eval(), torch.randn(10, 5, 32)
"""


@pytest.mark.parametrize("first", [True, False], ids=["batch first", "batch second"])
def test_an_encoder_layer_costs_the_same_fused_or_not(first: bool, here: Place) -> None:
    text = ENCODER_LAYER.replace("FIRST", str(first))
    for options in ((), ("--ops",), ("--ops", "--keep-fused")):
        rows, counts = recorded(here, text, *options)
        layer = rows["TransformerEncoderLayer"]
        assert (
            layer["inclusive_flops"]
            == STEPS * counts["TransformerEncoderLayer"]
            == STEPS * 2 * 50 * 32 * (4 * 32 + 2 * 64)
        )
        assert layer["unknown"] is None
    assert first == (layer["flops"] > 0)


def test_fused_attention_inside_a_call_of_another_class_is_not_known(here: Place) -> None:
    rows, _ = recorded(here, ATTENTIONS.replace("TRAIN", "False"), "--ops", "--depth", "0")
    assert rows["Attentions"]["flops"] is None
    assert rows["Attentions"]["unknown"]


SAMPLES = """
        class Samples(nn.Module):
            def __init__(self):
                super().__init__()
                self.each, self.all = nn.Linear(4, 6), nn.Linear(6, 3)

            def forward(self, x):
                return self.all(torch.vmap(lambda row: nn.functional.linear(row, self.each.weight))(x))

        def make():
            return Samples(), torch.randn(8, 4)
"""


def test_an_operator_under_vmap_whose_sizes_are_those_of_one_sample_is_not_known(here: Place) -> None:
    rows, _ = recorded(here, SAMPLES, "--ops")
    assert rows["Samples"]["flops"] is None
    assert rows["Samples.all"]["flops"] == STEPS * 2 * 8 * 6 * 3


AUTOCAST = """
        class Autocast(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(4, 6))

            def forward(self, x):
                with torch.autocast("cpu", torch.bfloat16):
                    return torch.mm(x, self.weight)

        def make():
            return Autocast(), torch.randn(8, 4)
"""


def test_products_of_autocast_count_once(here: Place) -> None:
    rows, _ = recorded(here, AUTOCAST, "--ops")
    assert rows["Autocast"]["flops"] == STEPS * 2 * 8 * 4 * 6


def test_marked_operators_tell_what_a_backward_pass_costs(here: Place) -> None:
    check(*recorded(here, MODELS["mlp"], "--ops", "--backward"))


def test_what_a_backward_pass_costs_goes_to_the_modules_that_it_is_of(here: Place) -> None:
    rows, counts = recorded(here, LLAMA, "--ops", "--backward")
    assert rows["Llama"]["inclusive_flops"] == STEPS * counts["Llama"]
    # Beside other branches torch counts work of one for another: a Linear costs as much again for each gradient.
    _, forward = recorded(here, LLAMA)
    linears = [row for row in rows.values() if row["class_name"] == "Linear"]
    assert [row["flops"] for row in linears] == [3 * STEPS * forward[row["path"]] for row in linears]


def test_a_backward_pass_without_marked_operators_is_not_known(here: Place) -> None:
    rows, counts = recorded(here, MODELS["mlp"], "--backward")
    check(rows, counts, unknown=(".0", ".2"))
    assert rows["Sequential.1"]["inclusive_flops"] == 0


def test_a_recurrent_layer_is_not_known(here: Place) -> None:
    rows, counts = recorded(
        here,
        """
        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm, self.out = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

            def forward(self, x):
                return self.out(self.lstm(x)[0])

        def make():
            return Tagger(), torch.randn(2, 4, 6)
    """,
    )
    check(rows, counts, unknown=(".lstm",))


def test_a_class_that_only_shares_a_name_with_one_of_torch_is_not_taken_for_it(here: Place) -> None:
    rows, counts = recorded(
        here,
        """
        class Linear(nn.Module):
            def __init__(self):
                super().__init__()
                self.base, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2), nn.Parameter(torch.randn(8, 2))

            def forward(self, x):
                return self.base(x) + F.linear(self.a(x), self.b)

        class LayerNorm(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(8, 8))

            def forward(self, x):
                return F.layer_norm(x @ self.weight, (8,))

        class MultiheadAttention(nn.Module):
            def __init__(self):
                super().__init__()
                self.q = nn.Linear(8, 8)

            def forward(self, x, y, z):
                return self.q(x) @ y.transpose(1, 2) @ z

        class Names(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear, self.norm, self.attn = Linear(), LayerNorm(), MultiheadAttention()

            def forward(self, x):
                x = self.norm(self.linear(x))
                return self.attn(x, x, x)

        def make():
            return Names(), torch.randn(2, 3, 8)
    """,
    )
    check(rows, counts, unknown=(".linear", ".norm", ".attn"))
