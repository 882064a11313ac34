"""Results lie in memory as they were traced, whatever the compiler made of the piece."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import fx, nn

from tests.capture.compile.models import compiled, traced
from tracekit.capture.compile.compiler import laid_out

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
SDPA = "aten::scaled_dot_product_attention"


class PartialRotary(nn.Module):
    """Attention of four heads, of which all dimensions are turned: what stays behind the turned ones is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 12, 8).transpose(1, 2).chunk(3, 1)
        q, k = self.turned(q, cos), self.turned(k, cos)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        q = q * 2
        return self.out((attended + q).transpose(1, 2).reshape(x.shape))

    @staticmethod
    def turned(x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        turning, staying = x[..., :8], x[..., 8:]
        other = torch.cat((-turning[..., 4:], turning[..., :4]), -1)
        return torch.cat([turning * cos + other * cos, staying], -1)


@pytest.mark.parametrize(("grad", "dynamic"), [(False, True), (True, False)])
def test_a_piece_takes_what_the_one_before_it_has_rearranged(*, grad: bool, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = PartialRotary()
    with torch.set_grad_enabled(grad):
        inputs = torch.randn(2, 6, 32), torch.randn(6, 8)
        if dynamic:
            torch._dynamo.mark_dynamic(inputs[0], 0)
        run = compiled(model, mode="inductor", splitting_ops=(SDPA,))
        torch.testing.assert_close(run(*inputs), model(*inputs))


@settings(deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4), st.permutations(range(4)))
def test_a_result_gets_the_strides_of_its_trace_and_keeps_its_numbers(
    traced: list[int], shape: list[int], made: list[int]
) -> None:
    result = torch.empty_permuted(shape, made).copy_(torch.arange(math.prod(shape)).view(shape))
    run = laid_out(lambda: (3, result), returning(torch.empty_permuted(shape, traced)))
    for _ in range(2):
        number, tensor = run()
        assert number == 3
        assert torch.equal(tensor, result)
        wanted = torch.empty_permuted(shape, traced).stride()
        assert all(a == b for size, a, b in zip(shape, tensor.stride(), wanted, strict=True) if size > 1)


def test_results_that_lie_as_they_were_traced_or_share_memory_are_not_copied() -> None:
    given = torch.randn(2, 3)
    assert laid_out(lambda: (3, given), returning(torch.empty(2, 3)))()[1] is given
    turned = laid_out(lambda x: (3, x.t()), returning(torch.empty(3, 2)))(given)[1]
    assert turned.data_ptr() == given.data_ptr()


@pytest.mark.usefixtures("inference")
def test_strides_of_dynamic_sizes_are_those_of_the_run() -> None:
    graph = traced(lambda x: (x.t() + 1).contiguous().t(), torch.ones(3, 4))
    (output,) = graph.graph.find_nodes(op="output")
    assert not all(isinstance(step, int) for step in output.args[0][0].meta["example_value"].stride())
    (result,) = laid_out(lambda x: (x + 1,), graph)(torch.ones(5, 4))
    assert result.stride() == (1, 5)


def test_gaps_between_rows_are_kept() -> None:
    run = laid_out(lambda: (3, torch.ones(2, 3)), returning(torch.empty_strided((2, 3), (8, 1))))
    assert run()[1].stride() == (8, 1)


def returning(example: torch.Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["example_value"] = example
    graph.output((3, node))
    return fx.GraphModule(nn.Module(), graph)
