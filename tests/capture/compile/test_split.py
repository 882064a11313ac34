"""Where graphs are split, and that the pieces together compute what the whole did."""

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.capture.compile import COMPILING
from tests.capture.compile.models import ATTENTION, Encoder, traced
from tracekit.capture.compile.split import NodeOperators, Split, split

pytestmark = COMPILING
aten = torch.ops.aten
X = torch.arange(12.0).reshape(4, 3) / 7


def shown(made: Split) -> list[str]:
    lines = []
    for part in made.parts:
        nodes = [node for node in part.graph.graph.nodes if node.op.startswith("call_")]
        names = [str(getattr(node.target, "__name__", node.target)) for node in nodes]
        lines.append("*" * part.splitting + " ".join(names))
    return lines


def checked(made: Split, *args: Any, expected: Any) -> list[str]:
    for part in made.parts:
        inputs = part.graph.graph.find_nodes(op="placeholder")
        values = [node.meta.get("val", node.meta.get("example_value")) for node in inputs]
        assert not any(isinstance(value, tuple | list | torch.Size) for value in values)
        (output,) = part.graph.graph.find_nodes(op="output")
        assert isinstance(output.args[0], tuple)
    found = made.graph(*args)
    found = found[0] if isinstance(found, tuple) else found
    assert torch.equal(found, expected)
    return shown(made)


def with_a_tuple(x: torch.Tensor) -> torch.Tensor:
    a, b = torch.split(x, 2)
    c = torch.sigmoid(torch.relu(a))
    return torch.cat([a, b, c, torch.relu(b)])


@pytest.mark.parametrize(
    ("run", "operators", "pieces"),
    [
        (
            with_a_tuple,
            ["aten::split.Tensor", "aten::sigmoid"],
            ["*split.Tensor getitem getitem", "relu.default", "*sigmoid.default", "relu.default cat.default"],
        ),
        (
            lambda x: torch.sigmoid(torch.exp(torch.sqrt(torch.relu(x)))),
            ["aten::sqrt", "aten::exp.default"],
            ["relu.default", "*sqrt.default exp.default", "sigmoid.default"],
        ),
        (torch.relu, ["aten::nothing"], ["relu.default"]),
    ],
)
def test_pieces_end_at_the_operators_and_no_tuple_goes_to_several(run: Any, operators: list, pieces: list) -> None:
    assert checked(split(make_fx(run)(X), operators), X, expected=run(X)) == pieces


def test_sizes_cross_no_border() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.size()
        y = torch.relu(x * 2)
        out = torch.empty_like(y)
        torch.ops.tracekit_tests.attention(y, y, y, out)
        wide = torch.cat([out, out])
        shape = wide.size()
        z = torch.sigmoid(wide.view(shape[0], columns))
        other = torch.empty_like(z)
        torch.ops.tracekit_tests.attention(z, z, z, other)
        return other.reshape(shape).sum() + other.view(2 * rows, -1).new_zeros(wide.size()[1:])

    graph = traced(run, X)
    sizes = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
    made = split(graph, [ATTENTION])
    args = [X if isinstance(size, torch.Tensor) else int(size) for size in sizes]
    lines = checked(made, *args, expected=run(X))
    assert len(lines) == 5
    assert not any("size" in line.split() for line in lines)


def test_pieces_keep_the_modules_they_came_from() -> None:
    made = split(traced(Encoder().eval(), torch.ones(2, 3, dtype=torch.long)), [])
    nodes = [node for node in made.parts[0].graph.graph.nodes if node.meta.get("nn_module_stack")]
    assert {list(node.meta["nn_module_stack"].values())[-1][1] for node in nodes} >= {nn.Linear}


@pytest.mark.parametrize(
    ("operator", "target", "splits"),
    [
        ("aten::add", aten.add, True),
        ("aten::add.Tensor", aten.add.Tensor, True),
        ("aten::add.Tensor", aten.add.Scalar, False),
        ("aten::add.Tensor", aten.add, False),
        ("aten::relu", aten.relu_.default, False),
        ("relu", aten.relu.default, False),
        (ATTENTION, torch.ops.tracekit_tests.attention.default, True),
        (f"{ATTENTION}.default", torch.ops.tracekit_tests.attention.default, True),
        (f"{ATTENTION}.default", torch.ops.tracekit_tests.attention, True),
        ("aten::relu", torch.relu, False),
    ],
)
def test_an_operator_is_named_by_packet_or_overload(operator: str, target: Any, splits: bool) -> None:
    node = fx.Node(fx.Graph(), "node", "call_function", target, (), {})
    assert (operator in NodeOperators().of(node)) is splits
