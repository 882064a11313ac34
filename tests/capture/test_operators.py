"""Operator markers: the words of emit_nvtx, inside of the modules that run them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from tracekit.capture import Listed, layer_markers, operator_markers

pytestmark = pytest.mark.torch

FORM = re.compile(r"(?P<name>\w+::\w+), seq = (?P<seq>\d+), op_id = (?P<id>\d+), sizes = (?P<sizes>\[.*\])")


def operators(to: Listed) -> list[dict[str, str]]:
    said = [FORM.fullmatch(event.text) for event in to.events if event.text]
    return [found.groupdict() for found in said if found]


def test_every_operator_has_a_name_a_number_and_the_sizes_of_its_arguments() -> None:
    to = Listed()
    with operator_markers(to):
        nn.Linear(4, 8)(torch.zeros(2, 4)).relu()
    said = {found["name"]: found["sizes"] for found in operators(to)}
    assert said["aten::addmm"] == "[[8], [2, 4], [4, 8]]"
    assert said["aten::relu"] == "[[2, 8]]"
    numbers = [int(found["id"]) for found in operators(to)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_an_operator_has_the_number_of_the_backward_node_that_it_creates() -> None:
    to, x = Listed(), torch.zeros(2, 4, requires_grad=True)
    with operator_markers(to):
        y = x.sin()
        z = y.exp()
        z.sum().backward()
    seqs: dict[str, list[int]] = {}
    for found in operators(to):
        seqs.setdefault(found["name"], []).append(int(found["seq"]))
    assert seqs["aten::sin"] == [y.grad_fn._sequence_nr()]
    assert seqs["aten::exp"] == [z.grad_fn._sequence_nr()]
    assert seqs["aten::cos"] == [y.grad_fn._sequence_nr()]
    assert seqs["aten::mul"] == [z.grad_fn._sequence_nr(), y.grad_fn._sequence_nr()]


def test_operators_lie_inside_of_the_modules_that_run_them() -> None:
    to, depth, path = Listed(), 0, []
    with layer_markers(model := nn.Sequential(nn.ReLU()), emitter=to), operator_markers(to):
        model(torch.zeros(1))
    for event in to.events:
        depth += 1 if event.text else -1
        if event.text and event.text.startswith("aten::relu"):
            path.append(depth)
    assert (path, depth) == ([3], 0)


def test_an_operator_that_raises_is_closed() -> None:
    to = Listed()
    one, other = torch.zeros(2, 3), torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), operator_markers(to):
        one @ other
    opened, closed = (event.text for event in to.events)
    assert opened is not None
    assert opened.startswith("aten::mm")
    assert closed is None


def test_results_are_those_of_the_bare_operators() -> None:
    model, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), torch.randn(3, 2, 8)
    expected = model(x)
    with operator_markers(Listed()):
        assert torch.equal(model(x), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_code_runs_compiled_and_the_operators_that_it_calls_are_marked(fullgraph: bool) -> None:
    torch._dynamo.reset()
    ran: list[int] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> object:
        def run(*args: torch.Tensor) -> object:
            ran.append(len(args))
            return graph.forward(*args)

        return run

    compiled, to = torch.compile(nn.Linear(4, 8), backend=backend, fullgraph=fullgraph), Listed()
    with torch.no_grad(), operator_markers(to):
        for _ in range(2):
            compiled(torch.zeros(2, 4))
    assert len(ran) == 2
    assert [found["name"] for found in operators(to)].count("aten::addmm") == 2
