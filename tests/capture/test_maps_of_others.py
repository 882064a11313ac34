"""Kernel maps of models of others, compiled whole: every kernel is of known modules, every product of its weight's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.capture.hollow_compiler import hollow_compiler
from tests.capture.kernel_truth import owners, runs, true_products, wrong_owners
from tests.capture.others import OTHERS, loss_of
from tracekit.capture import Listed, compiled_maps, layer_markers
from tracekit.capture.emit import routed_to

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.models, pytest.mark.filterwarnings("ignore")]

INFERENCE = ("llama", "llama_eager", "gpt2", "t5", "bert", "vit", "clip", "resnet", "convnext", "bart")
TRAINING = ("llama", "bert", "vit")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    with hollow_compiler():
        yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "trains"), [*((name, False) for name in INFERENCE), *((name, True) for name in TRAINING)]
)
def test_products_are_of_the_modules_that_own_their_weights(name: str, *, trains: bool) -> None:
    torch.manual_seed(0)
    other = OTHERS[name]()
    for part in other.model.train(trains).modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    listed = Listed()
    with compiled_maps(), routed_to(listed), torch.set_grad_enabled(trains):
        other.model.compile()
        with layer_markers(other.model), true_products(listed) as products:
            output = other.run()
            if trains:
                loss_of(output).backward()
    weights, gradients = owners(other.model, "top"), owners(other.model, "top", gradients=True)
    assert wrong_owners(listed, products, weights, gradients) == []
    kernels = [kernel for run in runs(listed) for kernel in run.kernels]
    unknown = [kernel for kernel in kernels if not kernel.modules]
    assert len(unknown) <= len(kernels) // 50
    assert sum(not kernel.generated for kernel in kernels) >= len(products) > 0
