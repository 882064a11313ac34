"""A model is split at an operator, whatever function runs it; what runs in the pieces is the judge."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.capture.compile import COMPILING
from tests.capture.compile.models import Encoder, Function, compiled, traced
from tracekit.capture.compile import CompileConfig, PiecewiseBackend
from tracekit.capture.compile.split import NodeOperators, run_operators

pytestmark = COMPILING
SDPA = "aten::scaled_dot_product_attention"
X = torch.randn(2, 3, 8)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x), SDPA),
        (lambda x: torch.softmax(x, -1), "aten::softmax.int"),
        (lambda x: operator.add(x, 1), "aten::add.Tensor"),
        (lambda x: F.silu(x * 2), "aten::silu"),
    ],
)
def test_a_function_is_known_by_its_operators_before_and_after_decomposition(
    function: Callable[..., Any], name: str
) -> None:
    known = NodeOperators()
    names = {operator for node in traced(function, X).graph.nodes for operator in known.of(node)}
    with Dispatched() as dispatched:
        function(X)
    assert {name} | dispatched.names <= names


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    """Attention inside of a body that Dynamo keeps as a graph of its own."""
    return checkpoint(lambda y: F.scaled_dot_product_attention(y, y, y), x + 1, use_reentrant=False) * 2


class Layers(nn.Module):
    """Attention of PyTorch's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attention(x, x, x, need_weights=False)[0])


class Dispatched(TorchDispatchMode):
    """The operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("model", "args", "name"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), (X,), "aten::addmm"),
        (Encoder().eval(), (torch.ones(2, 3, dtype=torch.long),), "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_compiled_piece_runs_an_operator_that_the_model_is_split_at(
    model: nn.Module, args: tuple[torch.Tensor, ...], name: str
) -> None:
    expected, backend = model(*args), PiecewiseBackend(CompileConfig(mode="eager", splitting_ops=(name,)))
    result = compiled(model, backend=backend)(*args)
    torch.testing.assert_close(result, expected)
    (made,) = backend.splits
    assert any(part.splitting for part in made.parts)
    for part in made.parts:
        with Dispatched() as dispatched:
            inputs = [node.meta["example_value"] for node in part.graph.graph.find_nodes(op="placeholder")]
            part.graph(*(torch.ones(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs))
        assert (name in dispatched.names) is part.splitting


@pytest.mark.parametrize("model", [Function(checkpointed), Layers().eval()], ids=["checkpoint", "module"])
def test_attention_inside_of_another_function_splits_there(model: nn.Module) -> None:
    backend = PiecewiseBackend(CompileConfig(mode="eager", splitting_ops=(SDPA,)))
    expected = model(X)
    torch.testing.assert_close(compiled(model, backend=backend)(X), expected)
    assert [part.splitting for part in backend.splits[0].parts].count(True) == 1
    assert backend.missing_operators is None


def test_tracing_nodes_leaves_the_graph_and_random_numbers_alone() -> None:
    graph = traced(lambda x: F.dropout(x.mul_(2), 0.5).t_(), torch.ones(3, 4))
    nodes = [node for node in graph.graph.nodes if "example_value" in node.meta]
    before, state = [str(node.meta["example_value"]) for node in nodes], torch.get_rng_state()
    assert {"aten::dropout", "aten::mul_", "aten::t_"} <= set(run_operators(graph, NodeOperators()))
    assert [str(node.meta["example_value"]) for node in nodes] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_backend_warns_of_an_operator_that_no_graph_runs(caplog: pytest.LogCaptureFixture) -> None:
    backend = PiecewiseBackend(CompileConfig(mode="eager", splitting_ops=(SDPA, "aten::nosuch")))
    compiled(Layers().eval(), backend=backend)(X)
    assert "no operator aten::nosuch to split the model at; it runs aten::" in caplog.text
    assert SDPA in caplog.text.partition("; it runs")[2]
