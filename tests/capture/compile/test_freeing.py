"""A compiled model that nobody holds any more is freed, with its parameters, its graphs and its code."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.compile import COMPILING
from tests.capture.compile.models import ATTENTION, Llama, ids
from tracekit.capture.compile import CompileConfig, PiecewiseBackend, compile_model

pytestmark = COMPILING
RECORDED = {"cudagraph_sizes": (4,), "graph_capture": "record", "copy_inputs": True}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def called(model: nn.Module, args: tuple[torch.Tensor, ...], *, guards: bool, **settings: Any) -> list[Any]:
    config = CompileConfig(**settings)
    backend = PiecewiseBackend(config)
    compiled = compile_model(model, config, backend=backend, guards=guards)
    for size in (4, 3, 4):
        compiled(*(arg[:size] for arg in args))
    held = [model, compiled]
    if not guards and not config.debug:  # guards, which Dynamo keeps as long as the model's class, keep their code
        held += [next(model.parameters()), backend, backend.splits[0].graph]
    return [weakref.ref(item) for item in held]


@pytest.mark.parametrize("guards", [True, False], ids=["guards", "no guards"])
@pytest.mark.parametrize(
    ("make", "settings", "grad"),
    [
        (small, {"mode": "inductor"}, True),
        (small, {"mode": "eager", "debug": True}, False),
        (lambda: Llama(2), {"mode": "eager", "splitting_ops": (ATTENTION,), **RECORDED}, False),
    ],
    ids=["training", "debug", "pieces"],
)
@pytest.mark.usefixtures("hollow")
def test_a_model_that_nobody_holds_is_freed(make: Any, settings: dict[str, Any], *, guards: bool, grad: bool) -> None:
    model = make()
    args = ids(4) if isinstance(model, Llama) else (torch.randn(4, 4),)
    with torch.set_grad_enabled(grad):
        references = called(model, args, guards=guards, **settings)
    del model, args
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_code_goes_on_working_while_other_models_are_freed() -> None:
    kept, x = small().eval(), torch.randn(4, 4)
    compiled = compile_model(kept, CompileConfig(mode="eager"))
    for _ in range(3):
        assert torch.equal(compiled(x), kept(x))
        called(small(), (x,), guards=True, mode="eager")
        gc.collect()
