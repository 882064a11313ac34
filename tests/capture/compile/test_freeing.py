"""A compiled model that nobody holds any more is freed, with its parameters, its graphs and its code."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.compile.models import ATTENTION, Branching, Llama, ids
from tracekit.capture.compile import CompileConfig, PiecewiseBackend, compile_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("inference"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
RECORDED = {"cudagraph_sizes": (4,), "graph_capture": "record", "copy_inputs": True}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def called(model: nn.Module, args: tuple[torch.Tensor, ...], *, bytecode: bool, **settings: Any) -> list[Any]:
    """Compiles and calls a model. Returns weak references to all that it leaves behind."""
    config = CompileConfig(**settings)
    backend = None if config.mode in {"stock", "none"} else PiecewiseBackend(config)
    compiled = compile_model(model, config, backend=backend, bytecode=bytecode)
    for size in (4, 3, 4):
        compiled(*(arg[:size] for arg in args))
    held = [model, compiled, next(model.parameters())]
    if backend is not None and not isinstance(model, Branching):  # Dynamo keeps the parts of a broken graph
        held += [backend, backend.splits[0].graph]
    return [weakref.ref(item) for item in held]


@pytest.mark.parametrize("bytecode", [False, True], ids=["guards filtered", "bytecode"])
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (small, {"mode": "eager"}),
        (small, {"mode": "inductor"}),
        (small, {"mode": "stock"}),
        (small, {"mode": "none"}),
        (small, {"mode": "eager", "debug": True}),
        (small, {"mode": "eager", **RECORDED}),
        (Branching, {"mode": "eager"}),
        (lambda: Llama(2), {"mode": "eager", "splitting_ops": (ATTENTION,), **RECORDED}),
    ],
    ids=["eager", "inductor", "stock", "none", "debug", "captured", "broken", "pieces"],
)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_model_that_nobody_holds_is_freed(make: Any, settings: dict[str, Any], *, bytecode: bool, grad: bool) -> None:
    model = make()
    args = ids(4) if isinstance(model, Llama) else (torch.randn(4, 4),)
    with torch.set_grad_enabled(grad and not isinstance(model, Llama)):  # its attention has no gradient
        references = called(model, args, bytecode=bytecode, **settings)
    del model, args
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_code_goes_on_working_while_other_models_are_freed() -> None:
    kept, x = small().eval(), torch.randn(4, 4)
    compiled = compile_model(kept, CompileConfig(mode="eager"))
    for _ in range(3):
        assert torch.equal(compiled(x), kept(x))
        called(small(), (x,), bytecode=False, mode="eager")
        gc.collect()
