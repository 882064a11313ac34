"""``compile_model``: right by torch's guards, or traced once and held to one sentence."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame

from tests.capture.compile.models import Counting, Function
from tests.capture.models import tree
from tracekit.capture import MemoryEmitter, layer_markers
from tracekit.capture.compile import CompileConfig, compile_model, counters
from tracekit.errors import CaptureError, UsageError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
EAGER = CompileConfig(mode="eager")
DEBUG = CompileConfig(mode="eager", debug=True)
INDUCTOR = CompileConfig(use_cache=False)
BOTH = pytest.mark.parametrize("guards", [True, False], ids=["guards", "no guards"])
X = torch.arange(12.0).view(3, 4)


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    assert not convert_frame._bytecode_hooks


def compiled(
    model: nn.Module, config: CompileConfig = EAGER, *, guards: bool = False
) -> tuple[nn.Module, list[torch.fx.GraphModule]]:
    """The model, and the graphs of a backend that keeps them and runs them as they are."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    return compile_model(model, config, guards=guards, backend=backend), graphs


class Doubling(nn.Module):
    """Times two from four rows on, else times a hundred."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] >= 4 else x * 100


class Block(nn.Module):
    """A layer with everything that may change: parameters, a buffer, a flag, a mode, arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.drop = nn.Dropout(1.0)
        self.register_buffer("shift", torch.ones(4))
        self.enabled = True

    def forward(self, x: torch.Tensor, *more: Any, scale: float = 1.0) -> torch.Tensor:
        y = self.up(x.to(self.up.weight.dtype))
        return self.drop(y if self.enabled else -y) * scale + self.shift + len(more)


class Reassigning(nn.Module):
    """Puts a new tensor in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + self.calls


@pytest.mark.parametrize(
    ("change", "args", "kwargs", "around"),
    [
        (lambda m: setattr(m, "enabled", False), (X,), {}, nullcontext()),
        (lambda m: m.drop.train(), (X,), {}, nullcontext()),
        (lambda m: m.half(), (X,), {}, nullcontext()),
        (lambda m: setattr(m.up, "forward", lambda x: x * 7), (X,), {}, nullcontext()),
        (bool, (X.double(),), {}, nullcontext()),
        (bool, (X[None],), {}, nullcontext()),
        (bool, (X,), {"scale": 3.0}, nullcontext()),
        (bool, (X, None), {}, nullcontext()),
        (bool, (X,), {}, torch.no_grad()),
        (bool, (X,), {}, torch.autocast("cpu", torch.bfloat16)),
    ],
    ids=["flag", "mode", "converted", "forward", "dtype", "rank", "value", "number", "gradients", "autocast"],
)
def test_a_change_is_seen_by_guards_and_refused_in_debug_mode(
    change: Callable[[Any], object], args: Any, kwargs: dict[str, Any], around: AbstractContextManager[object]
) -> None:
    model = Block().eval()
    right, held = compile_model(model, EAGER), compile_model(model, DEBUG, guards=False)
    right(X), held(X), held(X[:1])
    change(model)
    with around:
        torch.testing.assert_close(right(*args, **kwargs), model(*args, **kwargs))
        with pytest.raises(CaptureError, match="code without guards is wrong for this call: "):
            held(*args, **kwargs)


def test_a_size_that_is_not_dynamic_is_refused_in_debug_mode() -> None:
    held = compile_model(Doubling(), DEBUG, guards=False)
    held(X)
    with pytest.raises(CaptureError, match="code without guards is wrong for this call: "):
        held(X[:, :3])


def test_a_branch_on_the_size_is_right_by_guards_and_stays_as_traced_without_them() -> None:
    sizes = (4, 3, 1, 8)
    run, graphs = compiled(Doubling())
    assert [run(torch.ones(n)).unique().item() for n in sizes] == [2, 2, 2, 2]
    assert len(graphs) == 1
    run, graphs = compiled(Doubling(), guards=True)
    assert [run(torch.ones(n)).unique().item() for n in sizes] == [2, 100, 100, 2]
    run, _ = compiled(Doubling(), DEBUG)
    run(torch.ones(4))
    with pytest.raises(CaptureError, match=r"4 <= args\[0\]\.size\(\)\[0\]"):
        run(torch.ones(3))


@pytest.mark.parametrize("config", [INDUCTOR, DEBUG], ids=["inductor", "debug"])
@pytest.mark.parametrize("sizes", [(1, 8, 3, 0), (0, 5, 1)])
def test_one_trace_serves_all_sizes_also_none_and_one(config: CompileConfig, sizes: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1)).eval()
    run = compile_model(model, config, guards=False)
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(size, 4)
            torch.testing.assert_close(run(x), model(x))


def test_with_guards_one_graph_serves_all_sizes_from_two_on() -> None:
    run, graphs = compiled(Block().eval(), guards=True)
    for size in (3, 7, 2):
        run(torch.randn(size, 4))
    assert len(graphs) == 1


def test_a_first_call_of_one_row_runs_once() -> None:
    model = Counting()
    run, graphs = compiled(model)
    assert torch.equal(run(torch.ones(1, 4)), torch.ones(1, 4))
    assert (model.count[0], len(graphs)) == (1, 1)


@pytest.mark.parametrize("make", [Doubling, lambda: nn.Sequential(Doubling())], ids=["own", "PyTorch's"])
def test_many_models_of_one_class_have_code_of_their_own(make: Callable[[], nn.Module]) -> None:
    runs = [compiled(make()) for _ in range(12)]
    for sizes in ((4, 3), (3, 4)):
        found = [run(torch.ones(sizes[n % 2])).unique().item() for n, (run, _) in enumerate(runs)]
        assert found == [2, 100] * 6
    assert [len(graphs) for _, graphs in runs] == [1] * 12


@pytest.mark.parametrize("forgotten", [False, True])
def test_calls_without_guards_do_not_go_through_dynamo(forgotten: bool) -> None:
    run, _ = compiled(Doubling())
    run(torch.ones(4))
    if forgotten:
        torch._dynamo.reset()
    with torch.compiler.set_stance("force_eager"):
        assert run(torch.ones(3)).unique().item() == 2


@pytest.mark.parametrize("mode", ["stock", "none"])
def test_stock_and_none_are_plain_torch_compile_and_no_compiling(mode: str) -> None:
    run = compile_model(Doubling(), CompileConfig(mode=mode))
    with counters.expect(graphs_seen=0, pieces_seen=0, backend_compilations=0, graphs_captured=0):
        assert [run(torch.ones(n)).unique().item() for n in (4, 3)] == [2, 100]


@BOTH
def test_the_dynamic_dimensions_can_be_named(guards: bool) -> None:
    model = Block().eval()
    run, graphs = compiled(model, CompileConfig(mode="eager", dynamic_dims={"x": (1, -3)}), guards=guards)
    for shape in ((2, 3, 4), (2, 9, 4), (5, 2, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), model(x))
    assert len(graphs) == 1


@BOTH
def test_a_dynamic_dimension_of_an_argument_that_does_not_exist_is_refused(guards: bool) -> None:
    with pytest.raises(UsageError, match=r"dynamic_dims: forward has no argument z; it takes x"):
        compile_model(Doubling(), CompileConfig(dynamic_dims={"z": (0,)}), guards=guards)


def test_a_size_that_the_model_fixes_needs_guards() -> None:
    model = Function(lambda x: x + torch.arange(x.shape[0] * 1.0).view(4 if x.shape[0] == 4 else 5))
    run = compile_model(model, EAGER)
    for size in (4, 5, 4, 5):
        assert torch.equal(run(torch.zeros(size)), model(torch.zeros(size)))
    with pytest.raises(UsageError, match="the model requires a fixed value for a dynamic size"):
        compile_model(Function(model.function), EAGER, guards=False)(torch.zeros(4))
    static = compile_model(Function(model.function), CompileConfig(mode="eager", dynamic_dims={}), guards=False)
    assert torch.equal(static(torch.zeros(4)), torch.arange(4.0))


def test_tensors_of_the_caller_come_out_unmarked() -> None:
    x = torch.ones(3, 4)
    compiled(Block())[0](x)
    assert not [name for name in vars(x) if "dynam" in name]


@BOTH
@pytest.mark.parametrize("settings", [{}, {"graph_capture": "record", "cudagraph_sizes": (2,)}])
def test_a_reassigned_buffer_is_right_also_where_graphs_are_captured(guards: bool, settings: dict[str, Any]) -> None:
    model = Reassigning()
    run = compile_model(model, CompileConfig(mode="eager", **settings), guards=guards)
    assert [run(torch.zeros(2)).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    assert model.calls.item() == 3


def test_a_call_that_cannot_be_traced_is_refused_in_one_line() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError("two dimensions, please")
        return x @ x.t() if x.sum() > 0 else x

    run, _ = compiled(Function(picky))
    for args in ((torch.ones(3),), (torch.ones(2, 2),), ()):
        with pytest.raises(CaptureError, match=r"^Function cannot be compiled without guards: [^\n]+$"):
            run(*args)
    assert torch.equal(compile_model(Function(picky), EAGER)(torch.ones(2, 2)), torch.full((2, 2), 2.0))


def test_an_error_of_the_backend_for_people_is_not_wrapped() -> None:
    def refusing(graph: torch.fx.GraphModule, inputs: object) -> None:
        raise UsageError("no such operator")

    with pytest.raises(UsageError, match=r"^no such operator$"):
        compile_model(Doubling(), EAGER, guards=False, backend=refusing)(torch.ones(2))


@BOTH
def test_a_kv_cache_in_a_plain_object_grows_by_guards_and_a_tuple_without(guards: bool) -> None:
    def attention(x: torch.Tensor, cache: Any) -> Any:
        keys = torch.cat([cache[0] if isinstance(cache, tuple) else cache.keys, x])
        if isinstance(cache, tuple):
            return (x @ keys.t()).softmax(-1) @ keys, (keys,)
        cache.keys = keys
        return (x @ keys.t()).softmax(-1) @ keys, cache

    model = Function(attention)
    run, _ = compiled(model, guards=guards)
    empty = (lambda: SimpleNamespace(keys=torch.ones(2, 4))) if guards else lambda: (torch.ones(2, 4),)
    caches = [empty(), empty()]
    for _ in range(5):
        x = torch.randn(1, 4)
        expected, caches[0] = model(x, caches[0])
        found, caches[1] = run(x, caches[1])
        torch.testing.assert_close(found, expected)


@BOTH
def test_markers_on_the_compiled_model_are_those_of_its_root(guards: bool) -> None:
    to, run = MemoryEmitter(), compiled(nn.Sequential(Block().eval()), guards=guards)[0]
    run(X)
    with layer_markers(run, emitter=to):
        run(X)
    assert tree(to) == ["top"]


def test_gradients_reach_the_parameters() -> None:
    model = Block().eval()
    compiled(model)[0](X).sum().backward()
    assert torch.equal(model.up.bias.grad, torch.full((4,), 3.0))


def test_threads_trace_once_and_get_their_own_results() -> None:
    model = Block().eval()
    run, graphs = compiled(model)
    done: list[int] = []

    def work(number: int) -> None:
        x = torch.full((number + 1, 4), float(number))
        for _ in range(20):
            assert torch.allclose(run(x), model(x))
            done.append(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert (len(done), len(graphs)) == (80, 1)


def kept_sum(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.kept = x.sum() if self.kept is None else self.kept + x.sum()
    return self.kept * 1


def kept_rows(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.kept = torch.cat((self.kept, x))
    return self.kept.sum(0)


def kept_in_another_dtype(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.kept = self.kept + x
    return self.kept * 1


def kept_if_it_exists(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.kept = x + self.kept if hasattr(self, "kept") else x
    return self.kept * 1


@pytest.mark.parametrize(
    ("forward", "before", "fitting"),
    [
        (kept_sum, [None], torch.zeros(())),
        (kept_if_it_exists, [], torch.zeros(3, 4)),
        (kept_rows, [torch.zeros(1, 4)], None),
        (kept_in_another_dtype, [torch.zeros(3, 4, dtype=torch.int32)], torch.zeros(3, 4)),
    ],
)
def test_a_model_that_keeps_a_tensor_unlike_what_was_there_is_refused_without_guards(
    forward: Any, before: list[Any], fitting: torch.Tensor | None
) -> None:
    keeping = type("Keeping", (nn.Module,), {"forward": forward})
    model, expected = (nn.Sequential(nn.Identity(), keeping()) for _ in range(2))
    for value in before:
        model[1].kept = value
    run = compile_model(model, CompileConfig(mode="eager", dynamic_dims={}), guards=False)
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"Sequential sets 1\.kept in its forward"):
            run(X)
        assert [getattr(model[1], name) for name in vars(model[1]) if name == "kept"] == before
    if fitting is not None:
        model[1].kept = expected[1].kept = fitting
        for _ in range(3):
            torch.testing.assert_close(run(X), expected(X))


def test_a_compiled_model_is_refused() -> None:
    for made in (compile_model(Block(), EAGER, guards=False), torch.compile(Block())):
        with pytest.raises(UsageError, match="is already compiled"):
            compile_model(made, EAGER)
