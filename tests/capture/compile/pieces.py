"""Small pieces and the compilations of them, for tests of the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import torch

from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def piece(function: Callable, *args: object, dynamic: bool = True) -> tuple[torch.fx.GraphModule, list[object]]:
    """The graph of a function and the values of its placeholders, the first dimension of tensors dynamic."""
    found: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    args = tuple(a.detach().clone() if type(a) is torch.Tensor else a for a in args)
    for arg in args:
        if dynamic and isinstance(arg, torch.Tensor) and arg.dim():
            torch._dynamo.mark_dynamic(arg, 0)
    torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*args)
    (graph,) = found
    placeholders = graph.graph.find_nodes(op="placeholder")
    return graph, [node.meta["example_value"] for node in placeholders]


def compiled(graph: torch.fx.GraphModule, inputs: list[object]):
    """A piece as Inductor compiles it for every size."""
    return torch._inductor.standalone_compile(graph, inputs, dynamic_shapes="from_graph", options={})


def matmul() -> tuple[torch.fx.GraphModule, list[object]]:
    """A piece that Inductor compiles without a C++ compiler, in a second; :func:`matmul_is_right` runs it."""
    model = torch.nn.Linear(3, 2, bias=False).requires_grad_(requires_grad=False)
    return piece(model, torch.ones(4, 3))


def matmul_is_right(run: Callable, inputs: list[object], size: int) -> bool:
    """Whether compiled code of :func:`matmul` gives for one size what PyTorch gives."""
    x, weight = torch.randn(size, 3), torch.randn(2, 3)
    given = [size if isinstance(value, torch.SymInt) else weight if _is_weight(value) else x for value in inputs]
    (found,) = run(*given)
    return torch.allclose(found, x @ weight.t(), atol=1e-5)


def _is_weight(value: object) -> bool:
    return isinstance(value, torch.nn.Parameter)


def in_new_process(code: str, *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a program prints that runs in a fresh interpreter, with the modules of the tests at hand."""
    done = start(code, *args, env=env, cwd=cwd)
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    return out


def start(
    code: str, *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """A program started in a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(env or {}),
    )
