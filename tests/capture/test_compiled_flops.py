"""FLOPs that kernel maps tell are those that torch counts, module by module, of graphs of fixed and of other sizes."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.capture.compile.models import Function
from tests.capture.kernel_truth import watched
from tests.capture.truth import NOT_COUNTED
from tracekit.capture import compiled_maps
from tracekit.markers.base import Flops

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("hollow")]
_WIDTH = 8


class Attention(nn.Module):
    """Attention whose products are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        return x + self.out(weights @ value)


class Net(nn.Module):
    """Convolutions of all kinds, attention, and a product of a single row, which Inductor writes as a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, _WIDTH, 3, padding=1), nn.Conv2d(_WIDTH, _WIDTH, 3, groups=4)
        self.up = nn.ConvTranspose2d(_WIDTH, _WIDTH, 2, stride=2)
        self.attention = Attention()
        self.fused = Attention()
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(torch.relu(self.depthwise(self.stem(x))))
        x = self.fused(self.attention(x.flatten(2).transpose(1, 2)))
        x = functional.scaled_dot_product_attention(x, x, x)
        return self.head(x.mean(dim=(0, 1), keepdim=True)[0])


def once(model: nn.Module, x: Tensor, *, backward: bool) -> None:
    out = model(x)
    if backward:
        out.sum().backward()


def counted(model: nn.Module, x: Tensor, *, backward: bool) -> Counter[str]:
    with FlopCounterMode(display=False, custom_mapping=dict.fromkeys(NOT_COUNTED, lambda *_, **__: 0)) as counter:
        once(model, x, backward=backward)
    counts = counter.get_flop_counts().items()
    return Counter({name.replace(type(model).__name__, "top", 1): sum(each.values()) for name, each in counts})


def told(model: nn.Module, x: Tensor, *, backward: bool) -> list[tuple[str, Flops]]:
    with watched(model) as seen:
        once(model, x, backward=backward)
    pairs = ((each, flops) for kernel in seen.kernels for each, flops in zip(kernel.modules, kernel.flops, strict=True))
    return [(path, flops) for (path, _), flops in pairs]


def subtree_sums(rows: list[tuple[str, Flops]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for path, flops in rows:
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            total[".".join(parts[:end])] += flops.number
    return total


@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_flops_of_each_module_are_those_that_torch_counts(*, dynamic: bool) -> None:
    model, sizes = Net(), (6, 10) if dynamic else (6,)
    with compiled_maps(), torch.no_grad():
        true = {size: counted(model, torch.ones(2, 3, size, size), backward=False) for size in sizes}
        model.compile(dynamic=dynamic)
        for size in sizes:
            x = torch.ones(2, 3, size, size)
            model(x)
            rows = told(model, x, backward=False)
            assert [row for row in rows if row[1].number < 0] == []
            assert {name: number for name, number in subtree_sums(rows).items() if number} == {
                name: number for name, number in true[size].items() if number and name != "Global"
            }
    assert {flops.note for path, flops in rows if path == "top.stem" and flops.number} == {"float32"}


def test_forward_and_backward_flops_add_up_to_those_that_torch_counts() -> None:
    model, x = Net(), torch.ones(2, 3, 6, 6)
    true = counted(model, x, backward=True)
    forward = counted(model, x, backward=False)
    with compiled_maps():
        model.compile()
        model(x).sum().backward()
        rows = told(model, x, backward=True)
    total = subtree_sums(rows)
    assert total["top"] == true["Global"]
    # The input needs no gradient: the first convolution has that of its weight alone.
    assert total["top.stem"] == 2 * forward["top.stem"]
    for name in ("up", "attention.qkv", "attention.out", "fused.qkv"):
        assert total[f"top.{name}"] == 3 * forward[f"top.{name}"]


def test_an_operator_of_others_is_not_known_and_told_by_its_name() -> None:
    @torch.library.custom_op("tracekit_flops::halved", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @halved.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), Function(halved))
    with compiled_maps(), torch.no_grad():
        model.compile()
        model(torch.ones(4, _WIDTH))
        rows = told(model, torch.ones(4, _WIDTH), backward=False)
    unknown = {(path, flops.note) for path, flops in rows if flops.number < 0}
    assert unknown == {("top.1", "tracekit_flops::halved")}
