"""Pieces of one graph that an engine compiles once and runs for all layers, as vLLM and SGLang do on GPUs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.passes.split_module import split_module

from tests.capture.kernel_truth import watched
from tracekit.capture import compiled_maps

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("hollow")]

_WIDTH = 8
_LAYERS = 5


class Rotary(nn.Module):
    """A module without parameters that all layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.ones(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.angles)


class Layer(nn.Module):
    """A layer in whose middle the graph is split."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.rotary = rotary
        self.activation = nn.ReLU()
        self.up, self.down = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(torch.sin(self.rotary(self.up(self.norm(x))))))


class Model(nn.Module):
    """Equal layers: the pieces from the middle of one to the middle of the next are equal."""

    def __init__(self) -> None:
        super().__init__()
        rotary = Rotary()
        self.layers = nn.ModuleList(Layer(rotary) for _ in range(_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Engine:
    """Compiles a graph in pieces, split at each sine, equal ones once; keeps their code in files if asked."""

    def __init__(self, *, from_files: bool) -> None:
        self.from_files = from_files
        self.shared: Any = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        numbers: dict[torch.fx.Node, int] = {}
        number = 0
        for node in graph.graph.nodes:
            splits = node.target is torch.sin
            number += splits
            numbers[node] = number
            number += splits
        split = split_module(graph, graph, numbers.__getitem__, keep_original_order=True)
        pieces: list[tuple[str, Any]] = list(split.named_children())[::2]
        self.shared = self.shared or self._compiled(pieces[1][1])
        for name, piece in pieces:
            setattr(split, name, self._compiled(piece) if piece in (pieces[0][1], pieces[-1][1]) else self.shared)
        return split

    def _compiled(self, piece: torch.fx.GraphModule) -> Any:
        from torch._inductor.standalone_compile import AOTCompiledArtifact

        values = [node.meta["example_value"] for node in piece.graph.find_nodes(op="placeholder")]
        code: Any = torch._inductor.standalone_compile(piece, values, dynamic_shapes="from_graph", options={}, aot=True)
        if self.from_files:
            with torch._functorch.config.patch(bundled_autograd_cache=True):
                code = AOTCompiledArtifact.deserialize(code.serialize())
        (output,) = piece.graph.find_nodes(op="output")
        return _Module(code, alone=isinstance(output.args[0], torch.fx.Node))


class _Module(nn.Module):
    def __init__(self, code: Any, *, alone: bool) -> None:
        super().__init__()
        self.code = code
        self.alone = alone

    def forward(self, *args: Tensor) -> Any:
        results = self.code(*args)
        return results[0] if self.alone and not isinstance(results, torch.Tensor) else results


_KEPT = {"gate": nn.Linear(_WIDTH, 3)}


class Detours(nn.Module):
    """Comes to its modules on other ways than their paths: a method that it keeps, a closure, a global."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.method, self.closed, self.named = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
        _KEPT[name] = self.named
        self.kept = self.multiplied
        self.enclosing = self.enclosed()

    def multiplied(self, x: Tensor) -> Tensor:
        return self.method(x)

    def enclosed(self) -> Callable[[Tensor], Tensor]:
        module = self

        def run(x: Tensor) -> Tensor:
            return module.closed(x)

        return run

    def forward(self, x: Tensor) -> Tensor:
        return _KEPT[self.name](self.enclosing(self.kept(x)))


def handed_on(method: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(*args: Tensor) -> Tensor:
        return method(*args)

    return run


@pytest.mark.releases
@pytest.mark.parametrize("wrap", [False, True])
def test_a_module_is_called_what_its_model_calls_it_on_whatever_way_the_program_comes_to_it(*, wrap: bool) -> None:
    model = nn.Sequential(Detours("first"), Detours("second")).eval().requires_grad_(requires_grad=False)
    with compiled_maps(), torch.no_grad():
        if wrap:
            model.forward = torch.compile(handed_on(model.forward))
        else:
            model.compile()
        model(torch.ones(4, _WIDTH))
        with watched(model) as seen:
            model(torch.ones(4, _WIDTH))
    served = [path for kernel in seen.kernels for path, _ in kernel.modules]
    assert served == [f"top.{number}.{name}" for number in range(2) for name in ("method", "closed", "named")]
    assert len(seen.products) == len(served)
    assert seen.wrong == []


@pytest.mark.parametrize("from_files", [False, True])
def test_shared_code_serves_the_layers_whose_parameters_it_is_given(*, from_files: bool) -> None:
    model = Model().eval().requires_grad_(requires_grad=False)
    with compiled_maps():
        compiled = torch.compile(model, backend=Engine(from_files=from_files), fullgraph=True, dynamic=False)
        compiled(torch.ones(4, _WIDTH))
        with watched(model) as seen:
            for _ in range(2):
                compiled(torch.ones(4, _WIDTH))
    assert seen.wrong == []
    assert len(seen.products) == 2 * 2 * _LAYERS
    assert len(seen.runs) == 2 * (_LAYERS + 1)
    served = [
        {path.partition("top.layers.")[2] for kernel in run.kernels for path, _ in kernel.modules} for run in seen.runs
    ]
    for number, paths in enumerate(served[1:_LAYERS], 1):
        before, after = number - 1, number
        assert paths == {f"{before}.activation", f"{before}.down", f"{after}.norm", f"{after}.up", f"{after}.rotary"}


def test_shared_code_serves_the_model_whose_parameters_it_is_given() -> None:
    target, draft = (Model().eval().requires_grad_(requires_grad=False) for _ in range(2))
    engine = Engine(from_files=False)
    with compiled_maps():
        compiled = [torch.compile(model, backend=engine, fullgraph=True, dynamic=False) for model in (target, draft)]
        for run in compiled:
            run(torch.ones(4, _WIDTH))
        with watched(target, prefix="target"), watched(draft, prefix="draft") as seen:
            for run in compiled:
                run(torch.ones(4, _WIDTH))
    served = [{path.partition(".")[0] for kernel in run.kernels for path, _ in kernel.modules} for run in seen.runs]
    assert served == [{"target"}] * (_LAYERS + 1) + [{"draft"}] * (_LAYERS + 1)
