"""Products that Inductor's options rewrite: each is of the module that owns its weight, whatever call computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.capture.hollow_compiler import hollow_compiler
from tests.capture.kernel_truth import heaviest, runs
from tracekit.capture import Listed, compiled_maps, layer_markers
from tracekit.capture.emit import routed_to

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from tests.capture.kernel_truth import Run

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Sum(nn.Module):
    """Two products that are added up, and a third."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.down(torch.relu(self.left(x) + self.right(y)))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    with hollow_compiler():
        yield
    torch._dynamo.reset()


def one_run(**options: object) -> Run:
    """A run of the model compiled with some of Inductor's options."""
    from torch._inductor import config

    model, listed = Sum(), Listed()
    with compiled_maps(), routed_to(listed), torch.no_grad(), config.patch(options):
        model.compile()
        with layer_markers(model):
            model(torch.ones(4, 8), torch.ones(4, 8))
    [run] = runs(listed)
    return run


def test_call_that_adds_two_products_is_of_both_modules() -> None:
    kernels = one_run(max_autotune=True).kernels
    [both] = [kernel for kernel in kernels if kernel.name.endswith("_mm_plus_mm")]
    assert dict(both.modules) == {"top.left": 1, "top.right": 1}
    assert not any(flops.number == 0 for flops in both.flops)


def test_packed_products_are_of_their_modules_and_not_of_what_their_inputs_are_from() -> None:
    kernels = one_run(freezing=True).kernels
    products = [kernel for kernel in kernels if not kernel.generated]
    assert [heaviest(kernel) for kernel in products] == ["top.left", "top.right", "top.down"]
    assert {len(kernel.modules) for kernel in products} == {1}
    assert heaviest(kernels[-1]) == "top.down"


def test_libraries_that_generated_cpp_calls_have_the_names_that_they_have_in_python() -> None:
    """Else no profiler's operators are found to be theirs."""
    products = [kernel for kernel in one_run(cpp_wrapper=True).kernels if not kernel.generated]
    assert {kernel.name for kernel in products} <= {"extern_kernels.mm", "extern_kernels.addmm"}
    assert [heaviest(kernel) for kernel in products] == ["top.left", "top.right", "top.down"]
