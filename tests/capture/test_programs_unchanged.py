"""Markers change no program: what libraries do with hooks, copies and compilers goes as it goes without them."""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from tests.capture.models import counted
from tracekit.capture import MemoryEmitter, layer_markers
from tracekit.capture.emit import routed_to
from tracekit.capture.program import RootMarkers, marked_program
from tracekit.capture.schedule import Schedule

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
X = torch.linspace(-1, 1, 96).view(2, 3, 4, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dequant(self.block(self.quant(x))))


def fused(model: Net) -> nn.Module:
    return quantization.fuse_modules(model, [["block.0", "block.1", "block.2"]])


def quantized(model: Net) -> nn.Module:
    model.head.qconfig = None
    model.qconfig = quantization.get_default_qconfig("x86")
    prepared = quantization.prepare(fused(model))
    prepared(X)
    return quantization.convert(prepared)


def sparse(model: Net) -> nn.Module:
    sparsifier = WeightNormSparsifier(sparsity_level=0.5)
    sparsifier.prepare(model, [{"tensor_fqn": "head.1.weight"}])
    sparsifier.step()
    sparsifier.squash_mask()
    return model


def pruned(model: Net) -> nn.Module:
    prune.l1_unstructured(model.head[1], "weight", 0.5)
    model(X)
    prune.remove(model.head[1], "weight")
    return model


def hooked(model: Net) -> nn.Module:
    seen: list[str] = []
    for name, part in model.named_modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
    model(X)
    model.head[1].weight.data.mul_(len(seen))
    return model


def counted_by_torch(model: Net) -> nn.Module:
    with FlopCounterMode(display=False) as counter:
        model(X)
    model.head[1].weight.data.mul_(counter.get_total_flops() / 1e4)
    return model


def normed(model: Net) -> nn.Module:
    torch.manual_seed(0)
    parametrizations.weight_norm(model.head[1])
    nn.utils.spectral_norm(model.block[0])
    return model


LIBRARIES: dict[str, Callable[[Any], nn.Module]] = {
    "fuse_modules": fused,
    "prepare and convert": quantized,
    "quantize_dynamic": lambda model: quantization.quantize_dynamic(model, {nn.Linear}),
    "sparsifier": sparse,
    "prune": pruned,
    "hooks": hooked,
    "norms": normed,
    "flop counter": counted_by_torch,
    "jit.script": torch.jit.script,
    "jit.trace": lambda model: torch.jit.freeze(torch.jit.trace(model, X)),
    "export strict": lambda model: torch.export.export(model, (X,), strict=True).module(),
    "export": lambda model: torch.export.export(model, (X,), strict=False).module(),
    "fx": torch.fx.symbolic_trace,
    "compile": partial(torch.compile, backend="eager", fullgraph=True),
    "copy": copy.copy,
}


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@contextmanager
def marked() -> Iterator[MemoryEmitter]:
    window: Any = SimpleNamespace(open=bool, close=bool)
    put_on = partial(layer_markers, backward=True)
    with routed_to(to := MemoryEmitter()), marked_program(Schedule(window), put_on):
        yield to
    assert to.lane.open == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_that_touch_hooks_give_the_same_models(name: str) -> None:
    apply, model, plain = LIBRARIES[name], net(), net()
    plain(X)
    expected = apply(plain)(X)
    with marked() as to:
        model(X)
        result = apply(model)(X)
    assert torch.equal(result, expected)
    assert counted(to)["Net"]


@dataclass
class NoKey(nn.Module):
    """As dataclasses are, without a hash: no set and no dictionary takes it, so torch cannot list its parts."""

    number: int

    def __post_init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)


class NamesNothing(NoKey):
    __hash__ = nn.Module.__hash__

    def __getattr__(self, name: str) -> Any:
        return self._modules[name]


class Encodes(nn.Sequential):
    """Of which a method calls a part, amid variables of its own."""

    def encode(self, x: torch.Tensor, *, keeps: bool) -> list[str] | None:
        names = locals() if keeps else {}
        large = torch.zeros(4)
        gone = weakref.ref(large)
        self[0](x)
        del large
        return sorted(names) if keeps else [] if gone() is None else None


def test_variables_of_methods_around_a_part_are_kept_and_let_go_as_ever() -> None:
    with marked() as to:
        kept, let_go = Encodes(nn.Linear(4, 4)), Encodes(nn.Linear(4, 4))
        assert {"keeps", "self", "x"} <= {*(kept.encode(torch.ones(1, 4), keeps=True) or ())}
        assert let_go.encode(torch.ones(1, 4), keeps=False) == []
    assert counted(to) == {"Encodes.0": 1, "Encodes_2.0": 1}


@pytest.mark.parametrize("kind", [NoKey, NamesNothing])
def test_modules_that_do_not_answer_as_modules_do_run_as_they_do(kind: type[NoKey]) -> None:
    model, x = kind(1), torch.ones(1, 4)
    expected = model(x)
    with marked() as to:
        assert all(torch.equal(model(x), expected) for _ in range(2))
    assert counted(to)["NamesNothing.up" if kind is NamesNothing else "Linear"] == 2


class Inner(nn.Module):
    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.up, self.breaks = nn.Linear(4, 4), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return x.relu()


def hooked_inner() -> nn.Module:
    model = Inner()
    model.up.register_forward_hook(lambda *_: None)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "torch's own": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "the user's in torch's": lambda: nn.Sequential(Inner(), Inner()),
    "graph breaks": lambda: nn.Sequential(Inner(breaks=True), Inner()),
    "with hooks": hooked_inner,
    "encoder layer": lambda: nn.TransformerEncoderLayer(4, 2, 4, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 2),
    "lstm": lambda: nn.LSTM(4, 4),
}


def backend_into(graphs: list[list[str]], graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
    graphs.append([str(node.target) for node in graph.graph.nodes])
    return graph.forward


def graphs_compiled(model: nn.Module, *, in_place: bool) -> list[list[str]]:
    torch._dynamo.reset()
    backend = partial(backend_into, graphs := [])
    if in_place:
        model.compile(backend=backend)
    run = model if in_place else torch.compile(model, backend=backend)
    for size in (2, 2, 3):
        run(torch.ones(size, 3, 4))
    return graphs


@pytest.mark.parametrize(("training", "in_place"), [(True, True), (False, False)])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_graphs_are_compiled(name: str, training: bool, in_place: bool) -> None:
    model, plain = (MODELS[name]().train(training) for _ in range(2))
    with torch.set_grad_enabled(training):
        plain(torch.ones(1, 2, 4))
        expected = graphs_compiled(plain, in_place=in_place)
        with marked():
            model(torch.ones(1, 2, 4))
            assert graphs_compiled(model, in_place=in_place) == expected


def test_markers_put_on_and_taken_off_compile_nothing_anew() -> None:
    model, to = hooked_inner(), MemoryEmitter()
    run = torch.compile(model, backend=partial(backend_into, graphs := []))
    run(torch.ones(2, 4))
    with layer_markers(run, emitter=to), layer_markers(model, "inner", emitter=to):
        run(torch.ones(2, 4))
    run(torch.ones(2, 4))
    assert len(graphs) == 1
    assert counted(to) == {"top": 1}


def test_replicas_count_once_as_calls_of_their_original() -> None:
    to, model = MemoryEmitter(), Inner()
    with routed_to(to), RootMarkers(lambda *_: None, layer_markers):
        for _ in range(2):
            model(torch.ones(2, 4))
            for replica in (model._replicate_for_data_parallel(), copy.copy(model)):
                replica(torch.ones(2, 4))
    copy.copy(model)(torch.ones(2, 4))
    assert counted(to) == {"Inner": 6, "Inner.up": 6}
