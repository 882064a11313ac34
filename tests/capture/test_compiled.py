"""Dynamo never traces a mark: compiled models stay whole, and what ran unmarked is known."""

import gc
from collections.abc import Callable, Iterator
from weakref import ref

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.capture.models import tree
from tracekit.capture import MemoryEmitter, layer_marker, layer_markers, step
from tracekit.capture.emit import routed_to
from tracekit.capture.program import RootMarkers

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
X = torch.ones(2, 4)
INSIDE = ["top.a", "top.a.up", "top.b", "top.b.up"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).relu()


class Net(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.a, self.b = block(), block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Callable) -> Callable:
    return torch.compile(function, fullgraph=True, backend="eager")


def graphs() -> int:
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


def test_a_model_compiled_in_place_is_one_graph_and_its_root_is_marked() -> None:
    to, model = MemoryEmitter(), Net()
    model.compile(fullgraph=True, backend="eager")
    with layer_markers(model, emitter=to) as handle:
        model(X)
        assert handle.silent == INSIDE
        assert graphs() == 1
    model(X)
    assert tree(to) == ["top"]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_block_is_marked_among_eager_ones(in_place: bool) -> None:
    to, model = MemoryEmitter(), Net()
    if in_place:
        model.a.compile(fullgraph=True, backend="eager")
    else:
        model.a = compiled(model.a)
    with layer_markers(model, emitter=to) as handle:
        model(X)
        assert handle.silent == ["top.a.up"]
    assert tree(to) == ["top", "  top.a", "  top.b", "    top.b.up"]
    assert graphs() == 1


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("marked_first", [True, False])
def test_layers_compiled_one_by_one_share_their_code_as_without_markers(marked_first: bool, in_place: bool) -> None:
    to, model = MemoryEmitter(), nn.Sequential(Net(), Net(), Net())
    if marked_first:
        layer_markers(model, backward=True, emitter=to)
    for index, layer in enumerate(model):
        if in_place:
            layer.compile(fullgraph=True, backend="eager")
        else:
            model[index] = compiled(layer)
    if not marked_first:
        layer_markers(model, backward=True, emitter=to)
    with torch.no_grad():
        model(X)
    assert graphs() == 1
    assert tree(to) == ["top", "  top.0", "  top.1", "  top.2"]


@pytest.mark.parametrize(
    ("stance", "first"),
    [
        ("default", ["top", "  top.a", "  top.b", "    top.b.up"]),
        ("force_eager", ["top", "  top.a", "    top.a.up", "  top.b", "    top.b.up"]),
    ],
)
def test_markers_go_around_the_compiled_calls_of_modules_that_are_compiled_again(stance: str, first: list[str]) -> None:
    to, model = MemoryEmitter(), Net()
    handle = layer_markers(model, backward=True, emitter=to)
    for module in (model.a, model, model):
        module.compile(backend="eager")
        with torch.compiler.set_stance(stance):
            model(X)
    assert tree(to)[: len(first)] == first
    assert tree(to).count("top") == 3
    handle.remove()
    model(X)
    assert tree(to).count("top") == 3


def test_a_recording_keeps_no_module_alive_that_is_compiled_in_place() -> None:
    to, model = MemoryEmitter(), Net()
    model.a.compile(backend="eager")
    with routed_to(to), RootMarkers(lambda *_: None, layer_markers):
        model.compile(backend="eager")
        model(X)
        gone = [ref(module) for module in (model, model.a)]
        del model
        torch._dynamo.reset()
        gc.collect()
        assert [module() for module in gone] == [None, None]
    assert tree(to) == ["Net"]


def test_compiling_after_marking_breaks_no_graph_and_is_one_call() -> None:
    to, model = MemoryEmitter(), Net()
    handle = layer_markers(model, emitter=to)
    run = compiled(model)
    run(X)
    assert (tree(to), handle.silent, graphs()) == (["top"], INSIDE, 1)
    with layer_markers(run, "wrapper", emitter=to):
        run(X)
    assert tree(to) == ["top", "wrapper"]


class Disabled(Block):
    @torch.compiler.disable
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.between(self.up(x)).relu()


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))[0]


@pytest.mark.parametrize("make", [Recurrent, lambda: Net(Disabled)], ids=["recurrent", "disabled"])
def test_what_dynamo_leaves_to_python_inside_a_compiled_model_is_marked(make: Callable[[], nn.Module]) -> None:
    """Dynamo compiles every function that Python then calls, also hooks, which do nothing in compiled code."""
    made = []
    inside: set[str] = set()

    def compiler(graph: torch.fx.GraphModule, _inputs: object) -> Callable:
        stacks = (node.meta.get("nn_module_stack", {}) for node in graph.graph.nodes)
        inside.update(text for stack in stacks for text, _ in stack.values())
        return graph.forward

    for to in (None, MemoryEmitter()):
        torch._dynamo.reset()
        counters.clear()
        model = make()
        run = torch.compile(model, backend=compiler)
        if to is not None:
            layer_markers(run, backward=True, emitter=to)
        run(X)
        made.append(counters["stats"]["unique_graphs"])
    assert made[0] == made[1] > 0
    assert isinstance(to, MemoryEmitter)
    left = [name for name in ("a", "b") if f"L['self'].{name}" not in inside]  # torch 2.15 compiles `a` with the model
    assert tree(to) == ["top", *(f"  top.{name}" for name in left)]
    assert "b" in left


def test_markers_by_hand_and_steps_vanish_inside_of_a_graph_without_breaking_it() -> None:
    to, module = MemoryEmitter(), nn.Linear(4, 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        with step("inside", emitter=to), layer_marker("top.head", module, (x,), emitter=to) as call:
            call.result = module(x)
        return call.result

    assert torch.equal(compiled(run)(X), module(X))
    assert (to.events, graphs()) == ([], 1)


def test_export_and_jit_trace_of_a_marked_model_hold_no_marks() -> None:
    to, model = MemoryEmitter(), Net().eval()
    with layer_markers(model, emitter=to):
        exported = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_args, **_kwargs: None)
            traced = torch.jit.trace(model, X)
    tree(to)
    for again in (exported.module(), traced):
        assert torch.allclose(again(X), model(X))
    assert not [node for node in exported.graph.nodes if "sym" in str(node.target)]
