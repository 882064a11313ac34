"""Which inputs a graph writes to: through operators, methods, functions and views."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.capture.compile import COMPILING
from tests.capture.compile.models import traced
from tracekit.capture.compile.sizes import written_inputs

pytestmark = COMPILING
attention = torch.ops.tracekit_tests.attention


def into_fresh(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    attention(x, y, y, out)
    return out.add_(1)


def setting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[0] = 1
    return x + y


def counting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    rows += 1
    x += y
    return x.sum() + rows


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda x, y: x + y, ""),
        (into_fresh, ""),
        (lambda x, y: functional.relu(x, inplace=False) + y, ""),
        (lambda x, y: attention.default(x, x, x, y.view(3, 3)[:]), "y"),
        (lambda x, y: x[1:].mul_(2) + y[1:], "x"),
        (lambda x, y: torch.add(x, x, out=y), "y"),
        (lambda x, y: functional.relu(y, inplace=True) + x, "y"),
        (lambda x, y: functional.hardtanh(y, 0.0, 1.0, True) + x, "y"),
        (counting, "x"),
        (lambda x, y: torch._foreach_add_([x, y], 1), "xy"),
        (setting, "x"),
    ],
)
def test_it_is_known_which_inputs_are_written_to(function: Callable, written: str) -> None:
    graph = traced(function, torch.ones(3, 3), torch.zeros(3, 3))
    inputs = graph.graph.find_nodes(op="placeholder")
    found = sorted(written_inputs(graph))
    assert "".join(inputs[at].name.strip("l_") for at in found) == written


def test_where_tracing_left_nothing_all_may_be_written_to() -> None:
    graph = traced(into_fresh, torch.ones(3, 3), torch.zeros(3, 3))
    for node in graph.graph.nodes:
        node.meta.clear()
    assert written_inputs(graph) == set(range(len(graph.graph.find_nodes(op="placeholder"))))
