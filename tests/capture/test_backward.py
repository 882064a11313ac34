"""Backward markers: the module whose part of a backward pass runs, whatever order autograd takes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.models import Cnn, Encoder, Tagger, markers, tree
from tests.capture.recordings import parsed, recorded
from tracekit.capture import Listed, layer_markers
from tracekit.capture.recorder import Recorder
from tracekit.trace.decoding import decode

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def backward_lines(model: nn.Module, *inputs: object, loss=lambda output: output.sum()) -> list[str]:
    """The ranges of one backward pass, indented as they nest."""
    to = Listed()
    with layer_markers(model, emitter=to, backward=True):
        value = loss(model(*inputs))
        to.events.clear()
        value.backward()
    assert to.lane.open == []
    assert {marker.phase for marker in markers(to)} == {"backward"}
    return tree(to)


def test_modules_run_backward_in_the_opposite_order_each_within_its_own() -> None:
    assert backward_lines(Cnn(), torch.randn(1, 3, 8, 8)) == [
        "top",
        "  top.head",
        "  top.pool",
        "  top.stem",
        "    top.stem.2",
        "    top.stem.1",
        "    top.stem.0",
    ]


def test_work_of_the_module_itself_between_its_children_is_its_own() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x).sin() * 2).cos()

    model, to = Between(), Listed()
    seen: list[str] = []

    def note(_gradients: object) -> None:
        opened = [decode([e.text]).markers[0].path if e.text else None for e in to.events]
        stack: list[str | None] = []
        for path in opened:
            stack = [*stack, path] if path else stack[:-1]
        seen.append(stack[-1] or "")

    with layer_markers(model, emitter=to, backward=True):
        output = model(torch.randn(2, 4))
        to.events.clear()
        node = output.grad_fn
        while node is not None:
            node.register_prehook(note)
            node = next((n for n, _ in node.next_functions if n and "Acc" not in n.name()), None)
        output.sum().backward()
    assert seen == ["top", "top.b", "top", "top", "top.a", "top.a"]


def test_a_module_called_twice_has_two_parts() -> None:
    lines = backward_lines(Encoder(), torch.arange(3).view(1, 3), loss=lambda out: out["last"].sum())
    assert [line for line in lines if line.startswith("  top.")] == [
        "  top.layers.1",
        "  top.layers.1",
        "  top.layers.0",
        "  top.embed",
    ]


def test_in_place_modules_keep_working() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    bare = torch.randn(2, 4)
    expected = torch.autograd.grad(model(bare).sum(), model[0].weight)[0]
    with layer_markers(model, emitter=Listed(), backward=True):
        found = torch.autograd.grad(model(bare).sum(), model[0].weight)[0]
    assert torch.equal(found, expected)


def test_a_backward_pass_that_raises_is_closed_by_the_next_call() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("no")

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Failing.apply(x) * 2

    to, x = Listed(), torch.randn(2, requires_grad=True)
    with layer_markers(model := Model(), emitter=to, backward=True):
        with pytest.raises(ValueError, match="no"):
            model(x).sum().backward()
        model(x)
        assert to.lane.open == []
    assert tree(to) == ["top", "top", "top"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_module_runs_forward_again_inside_of_the_backward_pass(
    reentrant: bool,
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, x, use_reentrant=reentrant) * 1

    model, to = Checkpointed(), Listed()
    with layer_markers(model, emitter=to, backward=True):
        output = model(torch.randn(2, 4, requires_grad=True))
        to.events.clear()
        output.sum().backward()
        assert to.lane.open == []
    tree(to)
    assert {(marker.path, marker.phase) for marker in markers(to)} >= {
        ("top", "backward"),
        ("top.block", "recompute"),
        *([("top.block.0", "backward")] if reentrant else []),
    }


def test_turned_off_between_forward_and_backward_says_nothing() -> None:
    model, to = Tagger(), Listed()
    with layer_markers(model, emitter=to, backward=True) as handle:
        output = model(torch.randn(1, 2, 6))
        to.events.clear()
        handle.enabled = False
        output.sum().backward()
    assert to.events == []


def test_backward_in_another_thread_than_forward_is_balanced_there() -> None:
    model, to = Tagger(), Listed()
    with layer_markers(model, emitter=to, backward=True):
        output = model(torch.randn(1, 2, 6)).sum()
        to.events.clear()
        other = threading.Thread(target=output.backward)
        other.start()
        other.join()
    assert tree(to, other.ident) == ["top", "  top.out", "  top.lstm"]


def test_taking_the_markers_off_leaves_no_hook_behind() -> None:
    model = Tagger()
    layer_markers(model, emitter=Listed(), backward=True).remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpointed_function_computes_itself_is_of_no_module_when_it_runs_again(
    reentrant: bool, tmp_path: Path
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = (nn.Linear(4, 4) for _ in range(3))

        def part(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.sin()).erf().log1p()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.part, self.first(x), use_reentrant=reentrant))

    model, recorder, torchs_own = Model(), Recorder(), vars(torch.utils.checkpoint).copy()
    with recorded(recorder), layer_markers(model, backward=True):
        model(torch.rand(2, 4)).sum().backward()
    assert {name: vars(torch.utils.checkpoint)[name] for name in torchs_own} == torchs_own
    work = parsed(recorder, tmp_path).kernels(["name", "module", "phase", "cause"]).astype(object)
    for name in ("sin", "erf", "log1p"):
        own = work[work.name == f"aten::{name}"]
        places = {(row.phase, row.module if row.cause != row.cause else row.cause) for row in own.itertuples()}
        assert places == {("forward", "top"), ("recompute", "recomputed")}
    again = work[(work.phase == "recompute") & work.module.notna()]
    assert set(again.module) == {"top.inner"}
