"""Kernel maps of compiled graphs: whole, in order, of the right modules, cold and cached, forward and backward."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import flex_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from tests.capture.hollow_compiler import hollow_compiler
from tests.capture.kernel_truth import Watched, heaviest, runs, watched
from tracekit.capture import MemoryEmitter, compiled_maps, layer_markers
from tracekit.capture.emit import epoch, routed_to
from tracekit.capture.maps.owners import Kernel, Owners
from tracekit.capture.maps.traced import Traced, scope
from tracekit.errors import CaptureError
from tracekit.markers.base import MappedKernel

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("hollow")]

_WIDTH = 8


class Block(nn.Module):
    """A layer whose second product takes up the addition of the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 12), nn.Linear(12, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Equal layers, and work of its own before and after them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sin()


def whole(model: Model) -> None:
    model.compile()


def by_layer(model: Model) -> None:
    for layer in model.layers:
        layer.compile()


def trained(model: Model) -> Watched:
    with watched(model) as seen:
        model.zero_grad()
        model(torch.ones(4, _WIDTH)).sum().backward()
    return seen


@pytest.mark.releases
@pytest.mark.parametrize("compile_it", [whole, by_layer])
def test_every_product_is_of_the_module_that_owns_its_weight_also_in_equal_layers(
    compile_it: Callable[[Model], None],
) -> None:
    layers = 4
    with compiled_maps():
        compile_it(model := Model(layers))
        model(torch.ones(4, _WIDTH)).sum().backward()
        seen = trained(model)
    assert seen.wrong == []
    assert len(seen.products) >= 6 * layers - 1
    assert [kernel for kernel in seen.kernels if not kernel.modules] == []
    assert all(weight > 0 for kernel in seen.kernels for _, weight in kernel.modules)
    assert {run.phase for run in seen.runs} == {"forward", "backward"}
    served = {path for kernel in seen.kernels for path, _ in kernel.modules}
    assert {f"top.layers.{number}.up" for number in range(layers)} <= served


def test_work_of_the_compiled_module_itself_is_its_own() -> None:
    with compiled_maps():
        whole(model := Model(1))
        forward, _ = trained(model).runs
    assert [kernel.modules for kernel in forward.kernels if "sin" in kernel.name] == [(("top", 1),)]


def test_the_module_of_a_decorated_forward_is_the_root_of_those_that_it_calls() -> None:
    class Decorated(Model):
        @wraps(Model.forward)
        def forward(*args: Any) -> Tensor:
            return Model.forward(*args)

    roots = []

    def backend(graph: GraphModule, _: object) -> GraphModule:
        roots.append(Traced(graph, scope(graph)).roots)
        return graph

    model = Decorated(1)
    model.compile(backend=backend)
    model(torch.ones(4, _WIDTH))
    ((root,),) = roots
    assert root.module is not None
    assert root.module() is model


class Flexible(nn.Module):
    """Attention whose kernel Inductor makes of a template."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (part(x).view(1, 4, 2, 4).transpose(1, 2) for part in (self.query, self.key, self.value))
        # Releases of torch take no views, or none of one tensor.
        query, key, value = (part.contiguous() for part in parts)
        return self.out(flex_attention(query, key, value).transpose(1, 2).reshape(4, _WIDTH))


@pytest.mark.releases
@pytest.mark.parametrize("make", [partial(Model, 2), Flexible])
def test_order_and_names_are_those_that_the_profiler_sees(make: Callable[[], nn.Module]) -> None:
    with compiled_maps(cpu_kernels=True):
        (model := make()).compile()
        x = torch.ones(4, _WIDTH)
        with torch.no_grad():
            model(x)
            listed = MemoryEmitter()
            with routed_to(listed), layer_markers(model):
                model(x)
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                model(x)
    events = sorted(profiled.events(), key=lambda event: event.time_range.start)
    names = [event.name for event in events if event.name.startswith(("graph_", "aten::addmm", "aten::mm"))]
    seen = [
        name.split("_", 2)[2] if name.startswith("graph_") else name.replace("aten::", "extern_kernels.")
        for name in names
    ]
    (run,) = runs(listed)
    assert [kernel.name for kernel in run.kernels] == seen
    assert [kernel.generated for kernel in run.kernels] == [not name.startswith("extern") for name in seen]


@pytest.mark.releases
def test_maps_that_another_process_takes_from_a_cache_are_those_of_the_compilation() -> None:
    told = f"import json; from {__name__} import told_of_compiled_models; print(json.dumps(told_of_compiled_models()))"
    command = [sys.executable, "-W", "ignore", "-c", told]
    cold = told_of_compiled_models()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    warm = json.loads(done.stdout.splitlines()[-1])
    assert (cold.pop("hits"), warm.pop("hits")) == (0, 3)
    assert cold == warm
    assert cold["wrong"] == [[], []]


@pytest.mark.releases
def test_programs_without_maps_are_left_alone() -> None:
    from torch._inductor import compile_fx, output_code

    before = compile_fx.compile_fx, output_code.CompiledFxGraph.post_compile, torch.compiler.config.cache_key_tag
    with compiled_maps():
        whole(model := Model(1))
        model(torch.ones(4, _WIDTH))
    after = compile_fx.compile_fx, output_code.CompiledFxGraph.post_compile, torch.compiler.config.cache_key_tag
    assert before == after
    listed = MemoryEmitter()
    with routed_to(listed):
        model(torch.ones(4, _WIDTH))
    assert listed.events == []


def test_map_is_told_again_when_a_recording_begins() -> None:
    x, listed = torch.ones(4, _WIDTH), MemoryEmitter()
    with compiled_maps(), routed_to(listed), torch.no_grad():
        whole(model := Model(1))
        model(x)
        model(x)
        epoch.begin()
        model(x)
        with routed_to(other := MemoryEmitter()):
            model(x)
    for emitter, told in ((listed, [True, False, False, True, False]), (other, [True, False])):
        texts = [event.text for event in emitter.events if event.text is not None]
        assert [text.startswith('{"KernelMap"') for text in texts] == told


def test_unknown_release_is_refused_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(CaptureError, match=r"torch 2\.11 to 2\.15, not 2\.99\.0"), compiled_maps():
        pass


def told_of_compiled_models() -> dict[str, Any]:
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    torch.set_num_threads(1)
    counters.clear()
    told: dict[str, Any] = {"wrong": [], "runs": []}
    with hollow_compiler(), compiled_maps():
        for compile_it in (whole, by_layer):
            compile_it(model := Model(2))
            seen = trained(model)
            told["wrong"].append(seen.wrong)
            kernels = [(kernel.name, kernel.generated, kernel.modules) for kernel in seen.kernels]
            told["runs"].append([[run.phase for run in seen.runs], kernels])
    told["hits"] = counters["aot_autograd"]["autograd_cache_hit"]
    # As the other process tells it: without tuples.
    result: dict[str, Any] = json.loads(json.dumps(told))
    return result


class Sum(nn.Module):
    """Two products that are added up, and a third."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.down(torch.relu(self.left(x) + self.right(y)))


def kernels_of_one_run(**options: object) -> list[MappedKernel]:
    from torch._inductor import config

    model = Sum()
    with compiled_maps(), torch.no_grad(), config.patch(options):
        model.compile()
        with watched(model) as seen:
            model(torch.ones(4, 8), torch.ones(4, 8))
    [run] = seen.runs
    return run.kernels


@pytest.mark.releases
def test_call_that_adds_two_products_is_of_both_modules() -> None:
    kernels = kernels_of_one_run(max_autotune=True)
    [both] = [kernel for kernel in kernels if kernel.name.endswith("_mm_plus_mm")]
    assert dict(both.modules) == {"top.left": 1, "top.right": 1}
    assert not any(flops.number == 0 for flops in both.flops)


@pytest.mark.releases
@pytest.mark.parametrize("option", ["freezing", "cpp_wrapper"])
def test_products_that_are_packed_or_called_from_cpp_are_of_their_modules_and_of_no_others(option: str) -> None:
    kernels = kernels_of_one_run(**{option: True})
    products = [kernel for kernel in kernels if not kernel.generated]
    assert [heaviest(kernel) for kernel in products] == ["top.left", "top.right", "top.down"]
    assert all(flops.number for kernel in products for flops in kernel.flops)
    if option == "freezing":
        assert {len(kernel.modules) for kernel in products} == {1}
        assert heaviest(kernels[-1]) == "top.down"
    else:  # with other names than in Python, no profiler's operators would be found to be theirs
        assert {kernel.name for kernel in products} <= {"extern_kernels.mm", "extern_kernels.addmm"}


def test_a_product_of_its_own_has_no_share_of_the_kernel_before_it_or_of_that_which_adds_its_bias() -> None:
    """Inductor counts what is computed for an operator as the operator's work, too."""
    aten, graph = torch.ops.aten, torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    nodes = {
        "gate": (gate := graph.call_function(aten.sin.default, (x,))),
        "down": (down := graph.call_function(aten.mm.default, (gate, weight))),
        "conv": (conv := graph.call_function(aten.convolution.default, (down, weight))),
        "act": (act := graph.call_function(aten.relu.default, (conv,))),
    }
    for name, node in nodes.items():
        node.meta["nn_module_stack"] = {name: (name, nn.Module)}
    kernels = [
        Kernel("cpp_fused_mm_sin_0", True, (gate, down)),
        Kernel("extern_kernels.mm", False, (down,)),
        Kernel("cpp_fused_convolution_1", True, (conv,)),
        Kernel("extern_kernels.convolution", False, (conv,)),
        Kernel("cpp_fused_convolution_relu_2", True, (conv, act)),
    ]
    owned = [modules for modules, _ in Owners(torch.fx.GraphModule(nn.Module(), graph)).modules_of(kernels)]
    assert owned == [{"gate": 1}, {"down": 1}, {"conv": 1}, {"conv": 1}, {"conv": 1, "act": 1}]


class Checkpointed(Model):
    """Layers that run again for their backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


@pytest.mark.releases
def test_products_that_run_again_for_a_backward_pass_are_recomputation() -> None:
    with compiled_maps():
        whole(model := Checkpointed(2))
        seen = trained(model)
    assert seen.wrong == []
    again = {run.phase: [kernel for kernel in run.kernels if kernel.recomputes] for run in seen.runs}
    products = {heaviest(kernel) for kernel in again["backward"] if not kernel.generated}
    assert again["forward"] == []
    assert {"top.layers.0.up", "top.layers.1.up"} <= products
    assert "top.head" not in products


class Masked(Model):
    """Its forward pass also computes what only the backward pass needs: a view of the mask that it makes."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.ones(4, 4).tril() @ self.layers[0](x))


def test_a_forward_pass_computes_nothing_anew_whatever_it_keeps_for_the_backward_pass() -> None:
    with compiled_maps():
        whole(model := Masked(1))
        forward, _ = trained(model).runs
    assert forward.phase == "forward"
    assert [kernel.name for kernel in forward.kernels if kernel.recomputes] == []


def test_modules_in_functions_that_an_engine_compiles_are_counted_as_inside_compiled_code() -> None:
    model = Model(1)
    model.layers[0].forward = torch.compile(model.layers[0].forward)  # type: ignore[method-assign]
    with compiled_maps(), routed_to(MemoryEmitter()), layer_markers(model) as markers:
        model(torch.ones(4, _WIDTH))
    assert markers.inventory == {"marked": 3, "containers": 1, "compiled": 3}
