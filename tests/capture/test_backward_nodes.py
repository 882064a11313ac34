"""Whose each node of a backward pass is, by hooks of this test's own and autograd's sequence numbers."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr
from torch._C._profiler import ActiveProfilerType
from torch.autograd.graph import Node
from torch.utils.checkpoint import checkpoint

from tests.capture.models import Tagger, tree
from tests.capture.recordings import parsed, recorded
from tests.capture.truth import Truth
from tracekit.capture import MemoryEmitter, layer_markers
from tracekit.capture.recorder import Recorder

SIZE = 8


def numbers() -> Tensor:
    return torch.randn(2, 4, SIZE)


class Mlp(nn.Module):
    """Has operators of its own before, between and after its children."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(nn.functional.gelu(self.up(x.sin())) * 2)).tanh()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(SIZE), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x.relu())


class Tapped(nn.Module):
    """Keeps losses of its own aside, computed from the middle of it."""

    balance: Tensor
    inner: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp(), Mlp()
        self.router, self.last = nn.Linear(SIZE, 4), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.balance = (self.router(x).softmax(-1) ** 2).mean() * 3
        x = self.second(x).cos()
        self.inner = x.tanh()
        return self.last(x) + 1


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


class OwnFunction(nn.Module):
    """A function with a backward of its own, and tensors that change in place below views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Mlp(), nn.Linear(SIZE, SIZE)
        self.in_place = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = _Sine.apply(_Sine.apply(self.first(x)) * 2)
        y = self.last(x)
        part = y[..., :2]
        y.mul_(2)
        part.add_(1)
        return self.in_place(_Sine.apply(y) + part.sum()).sum()


def one_loss(model: nn.Module) -> list[Tensor]:
    return [model(numbers()).sum()]


def several_passes(model: Tapped) -> list[Tensor]:
    output = model(numbers())
    return [output.sum(), model.balance, model.inner.sum(), output.mean()]


#: A model, and what calls it and returns its losses.
TRAINED: dict[str, tuple[Callable[[], nn.Module], Callable[..., list[Tensor]]]] = {
    "checkpointed": (lambda: Checkpointed(reentrant=False), one_loss),
    "checkpointed reentrant": (lambda: Checkpointed(reentrant=True), one_loss),
    "several passes": (Tapped, several_passes),
    "own function": (OwnFunction, one_loss),
}


pytestmark = pytest.mark.torch


def nodes_below(loss: Tensor) -> list[Node]:
    seen: dict[Node, None] = {}
    pending = [loss.grad_fn]
    while pending:
        if (node := pending.pop()) is not None and node not in seen:
            seen[node] = None
            pending += [below for below, _ in node.next_functions]
    return [node for node in seen if node._sequence_nr() < 2**63]


def open_path(to: MemoryEmitter) -> str | None:
    ranges = ['{"Phase": "backward", "Module": null}']
    for event in to.events:
        if event.thread == threading.get_ident():
            ranges = [*ranges, event.text] if event.text is not None else ranges[:-1]
    marker = json.loads(ranges[-1])
    assert marker["Phase"] == "backward"
    return marker["Module"]


def differences(losses: list[Tensor], to: MemoryEmitter, owner: Callable[[int], str | None]) -> list[tuple]:
    ran = []

    def note(node: Node) -> None:
        ran.append((node.name(), owner(node._sequence_nr()), open_path(to)))

    for loss in losses:
        handles = [node.register_prehook(lambda _, node=node: note(node)) for node in nodes_below(loss)]
        loss.backward(retain_graph=len(losses) > 1)
        for handle in handles:
            handle.remove()
    assert ran
    return [one for one in ran if one[1] != one[2]]


@pytest.mark.parametrize("name", TRAINED)
def test_every_node_runs_in_the_range_of_the_module_whose_forward_made_it(name: str) -> None:
    make, run = TRAINED[name]
    model, to = make(), MemoryEmitter()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        for _ in range(2):
            assert differences(run(model), to, truth.owner) == []
    assert to.lane.open == []


def test_nodes_of_another_thread_are_never_those_of_a_module_with_the_same_numbers() -> None:
    model, to = nn.ModuleDict({"here": Mlp(), "there": Mlp()}), MemoryEmitter()
    outputs: dict[str, Tensor] = {}
    with layer_markers(model, emitter=to, backward=True):
        for name in ("here", "there"):  # both threads count from the same number, nearly
            with ThreadPoolExecutor(1) as thread:
                outputs[name] = thread.submit(model[name], numbers()).result()
        aside = (outputs["here"] * 2 + outputs["there"] * 3).sum()
        paths: dict[str, set[str | None]] = {"here": set(), "there": set(), "loss": set()}
        for name in ("here", "there"):
            for node in nodes_below(outputs[name].sum())[1:]:
                node.register_prehook(lambda _, name=name: paths[name].add(open_path(to)))
        assert aside.grad_fn is not None
        aside.grad_fn.register_prehook(lambda _: paths["loss"].add(open_path(to)))
        aside.backward()
    assert paths["loss"] == {None}
    for name in ("here", "there"):
        assert {path.split(".")[1] for path in paths[name] if path} == {name}


def test_what_is_differentiated_twice_is_still_the_module_s() -> None:
    model, to = nn.Sequential(Mlp(), Mlp()), MemoryEmitter()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        x = numbers().requires_grad_()
        made: dict[int, str | None] = {}
        output = model(x).sum()
        for node in nodes_below(output):
            path, start = truth.owner(node._sequence_nr()), []
            node.register_prehook(lambda _, start=start: start.append(_get_sequence_nr()))
            node.register_hook(
                lambda *_, start=start, path=path: made.update(
                    dict.fromkeys(range(start[-1], _get_sequence_nr()), path)
                )
            )
        (gradient,) = torch.autograd.grad(output, x, create_graph=True)
        own = lambda number: made.get(number, truth.owner(number))  # noqa: E731
        wrong = differences([gradient.square().sum()], to, own)
    # Gradients of one tensor from several users are added between nodes.
    assert {name for name, *_ in wrong} <= {"AddBackward0"}


def test_ranges_need_not_nest_while_torch_pushes_ranges_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(MemoryEmitter):
        def __init__(self) -> None:
            super().__init__()
            self.running: list[str] = []

        def start(self, text: str) -> Callable[[], object]:
            self.running.append(json.loads(text)["Module"])
            return self.running.pop

    monkeypatch.setattr(torch._C._autograd, "_profiler_type", lambda: ActiveProfilerType.NVTX)
    model, to, found = Mlp(), Started(), set()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        loss = model(numbers()).sum()
        to.events.clear()
        for node in nodes_below(loss):
            owner = truth.owner(node._sequence_nr())
            node.register_prehook(lambda _, owner=owner: found.add((owner, *to.running[-1:])))
        loss.backward()
    assert found == {(None,), ("top", "top"), ("top.up", "top.up"), ("top.down", "top.down")}
    assert not to.events
    assert not to.running


def work_of_training(name: str, folder: Path, *, backward: bool) -> pd.DataFrame:
    make, run = TRAINED[name]
    torch.manual_seed(1)
    model, recorder = make(), Recorder(ops=True)
    with recorded(recorder), layer_markers(model, backward=backward):
        for loss in (losses := [*run(model), *run(model)]):
            loss.backward(retain_graph=len(losses) > 2)
    work = parsed(recorder, folder).kernels(["name", "module", "method", "phase", "start_ns"])
    return work.sort_values("start_ns", kind="stable").astype(object).reset_index(drop=True)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("several passes", set()),
        # A node inside which modules run again, and the nodes of views that were made anew at the end of a module.
        ("checkpointed", {"TanhBackward0"}),
        ("checkpointed reentrant", {"CheckpointFunctionBackward"}),
        ("own function", {"AsStridedBackward0"}),
    ],
)
def test_sequence_numbers_tell_the_modules_that_markers_of_the_backward_pass_tell(
    name: str, unknown: set[str], tmp_path: Path
) -> None:
    marked, numbered = (work_of_training(name, tmp_path, backward=backward) for backward in (True, False))
    assert marked.name.tolist() == numbered.name.tolist()
    known = numbered.module.notna()
    assert (numbered.module[known] == marked.module[known]).all()
    assert set(numbered.phase[numbered.method == "backward"]) == {"backward"}
    nodes = numbered[numbered.name.str.fullmatch(r"\w+Backward\d*") & marked.module.notna()]
    assert set(nodes.name[nodes.module.isna()]) == unknown
    assert (nodes.method == "backward").sum() > 20


def test_a_backward_pass_that_raises_is_closed_by_the_next_call() -> None:
    model, to, x = nn.Tanh(), MemoryEmitter(), torch.randn(2, requires_grad=True)
    with layer_markers(model, emitter=to, backward=True):
        (output := model(x)).grad_fn.register_prehook(Mock(side_effect=ValueError("no")))
        with pytest.raises(ValueError, match="no"):
            output.sum().backward()
        model(x)
        assert to.lane.open == []
    assert tree(to) == ["top", "top", "top"]


def test_backward_in_another_thread_than_forward_is_balanced_there() -> None:
    model, to = Tagger(), MemoryEmitter()
    with layer_markers(model, emitter=to, backward=True), ThreadPoolExecutor(1) as other:
        output = model(torch.randn(1, 2, 6)).sum()
        to.events.clear()
        other.submit(output.backward).result()
        ident = other.submit(threading.get_ident).result()
    assert tree(to, ident) == ["top", "  top.out", "  top.lstm"]


def test_backward_says_nothing_in_any_thread_if_turned_off_after_forward() -> None:
    model, to = Tagger(), MemoryEmitter()
    with layer_markers(model, emitter=to, backward=True) as handle, ThreadPoolExecutor(1) as other:
        output = model(torch.randn(1, 2, 6)).sum()
        to.events.clear()
        handle.enabled = False
        output.backward(retain_graph=True)
        other.submit(output.backward).result()
    assert to.events == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpointed_function_computes_itself_is_of_no_module_when_it_runs_again(
    reentrant: bool, tmp_path: Path
) -> None:
    def part(x: Tensor) -> Tensor:
        return model[1](x.sin()).erf().log1p()

    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    model.forward = lambda x: model[2](checkpoint(part, model[0](x), use_reentrant=reentrant))
    recorder, torchs_own = Recorder(), vars(torch.utils.checkpoint).copy()
    with recorded(recorder), layer_markers(model, backward=True):
        model(torch.rand(2, 4)).sum().backward()
    assert {name: vars(torch.utils.checkpoint)[name] for name in torchs_own} == torchs_own
    work = parsed(recorder, tmp_path).kernels(["name", "module", "phase", "cause"]).astype(object)
    for name in ("sin", "erf", "log1p"):
        own = work[work.name == f"aten::{name}"]
        places = {(row.phase, row.module if row.cause != row.cause else row.cause) for row in own.itertuples()}
        assert places == {("forward", "top"), ("recompute", "recomputed")}
    again = work[(work.phase == "recompute") & work.module.notna()]
    assert set(again.module) == {"top.1"}
