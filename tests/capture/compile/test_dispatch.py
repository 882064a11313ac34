"""A compiled model is traced once for each form of a call, then called past its guards."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame

from tests.capture.models import tree
from tracekit.capture import Listed, layer_markers
from tracekit.capture.compile import CompileConfig, compile_model
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
EAGER = CompileConfig(mode="eager")
RECORDED = CompileConfig(mode="eager", graph_capture="record", cudagraph_sizes=(1, 2))
ROUTES = pytest.mark.parametrize("bytecode", [False, True], ids=["guard filter", "bytecode"])


class Graphs:
    """A backend that counts its graphs and runs them as they are."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: object):
        self.seen.append(graph)
        return graph.forward

    def __len__(self) -> int:
        return len(self.seen)


class Doubling(nn.Module):
    """Times two from four rows on, else times a hundred."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] >= 4 else x * 100


class Scaling(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) * self.factor


class Counting(nn.Module):
    """Puts a new tensor in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + self.calls


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert not convert_frame._bytecode_hooks


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was told to people."""
    ours = [record for record in caplog.records if record.name.startswith("tracekit")]
    return [record.message for record in ours if record.levelno >= logging.WARNING]


def compiled(model: nn.Module, config: CompileConfig = EAGER, *, bytecode: bool = False):
    graphs = Graphs()
    return compile_model(model, config, bytecode=bytecode, backend=graphs), graphs


@ROUTES
def test_a_branch_on_the_size_stays_as_it_was_traced(bytecode: bool) -> None:
    run, graphs = compiled(Doubling(), bytecode=bytecode)
    assert [run(torch.ones(n)).unique().item() for n in (4, 3, 1, 8)] == [2, 2, 2, 2]
    assert len(graphs) == 1


def test_stock_torch_compile_keeps_its_guards() -> None:
    run = compile_model(Doubling(), CompileConfig(mode="stock"), backend="eager")
    assert [run(torch.ones(n)).unique().item() for n in (4, 3)] == [2, 100]


def test_mode_none_compiles_nothing() -> None:
    run, graphs = compiled(Doubling(), CompileConfig(mode="none"))
    assert [run(torch.ones(n)).unique().item() for n in (4, 3)] == [2, 100]
    assert not graphs.seen


@ROUTES
def test_models_of_one_class_have_code_of_their_own(bytecode: bool) -> None:
    (a, graphs_a), (b, graphs_b) = (compiled(Doubling(), bytecode=bytecode) for _ in range(2))
    assert a(torch.ones(4)).unique().item() == 2
    assert b(torch.ones(3)).unique().item() == 100
    assert a(torch.ones(3)).unique().item() == 2
    assert b(torch.ones(4)).unique().item() == 100
    assert (len(graphs_a), len(graphs_b)) == (1, 1)


@ROUTES
def test_models_of_pytorch_s_own_classes_have_code_of_their_own(bytecode: bool) -> None:
    models = [nn.Sequential(nn.Linear(4, 4)) for _ in range(2)]
    models += [nn.Linear(4, 4), torch.fx.symbolic_trace(nn.Linear(4, 4)), nn.Linear(4, 4)]
    runs = [compiled(model, bytecode=bytecode) for model in models]
    for size in (3, 1, 5):
        x = torch.randn(size, 4)
        for (run, _), model in zip(runs, models, strict=True):
            assert torch.equal(run(x), model(x))
    assert [len(graphs) for _, graphs in runs] == [1] * 5


@ROUTES
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_bytecode_route_alone_goes_past_dynamo(bytecode: bool, wrapped: bool) -> None:
    model = nn.Sequential(Doubling()) if wrapped else Doubling()
    run, _ = compiled(model, bytecode=bytecode)
    run(torch.ones(4))
    with torch.compiler.set_stance("force_eager"):
        assert run(torch.ones(3)).unique().item() == (2 if bytecode else 100)


def test_a_size_that_a_model_of_pytorch_s_own_fixes_is_known_by_its_name(caplog) -> None:
    model = nn.MultiheadAttention(4, 1, batch_first=True, bias=False)
    run, _ = compiled(model)
    for size in (2, 3):
        x = torch.randn(size, 3, 4)
        mask = torch.zeros(3, 3, dtype=torch.bool)
        found = run(x, x, x, None, False, mask)
        torch.testing.assert_close(found[0], model(x, x, x, None, False, mask)[0])
    (text,) = warnings(caplog)
    assert "the model requires fixed values for size 0 of attn_mask" in text


@ROUTES
def test_no_code_object_is_exchanged(bytecode: bool) -> None:
    code = Doubling.forward.__code__
    run, _ = compiled(Doubling(), bytecode=bytecode)
    run(torch.ones(4))
    with pytest.raises(AttributeError):
        run(4)
    assert Doubling.forward.__code__ is code
    assert Doubling()(torch.ones(3)).unique().item() == 100


@ROUTES
@pytest.mark.parametrize("sizes", [(1, 8, 3), (0, 5, 1), (7, 1, 0)])
def test_a_first_call_of_one_row_or_none_is_traced_for_all_sizes(bytecode: bool, sizes) -> None:
    model = Scaling(3.0)
    run, graphs = compiled(model, bytecode=bytecode)
    for size in sizes:
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(x), model(x))
    assert len(graphs) == 1


def test_a_first_call_of_one_row_runs_once() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.python_calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            self.python_calls += 1
            return x + self.calls

    model = Writing()
    run, graphs = compiled(model)
    assert run(torch.zeros(1)).item() == 1
    assert (model.calls.item(), model.python_calls, len(graphs)) == (1, 1, 1)


@ROUTES
def test_values_that_are_no_tensors_are_part_of_the_form(bytecode: bool) -> None:
    class Masked(nn.Module):
        def forward(self, x, mask=None, *, scale: float = 1.0, names=("a",)) -> dict:
            x = x if mask is None else x.masked_fill(mask, 0.0)
            return dict.fromkeys(names, x * scale)

    model, x, mask = Masked(), torch.randn(5, 3), torch.ones(5, 3, dtype=torch.bool)
    run, graphs = compiled(model, bytecode=bytecode)
    calls = [
        ((x,), {}),
        ((x, mask), {}),
        ((x,), {"mask": mask}),
        ((x, None), {"scale": 2.0}),
        ((x,), {"scale": 3.0, "names": ("a", "b")}),
        ((x,), {"scale": 1.0}),
        ((x,), {"scale": 1}),
    ]
    for args, kwargs in calls * 2:
        found, expected = run(*args, **kwargs), model(*args, **kwargs)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value)
    assert len(graphs) == len(calls)


@ROUTES
def test_what_a_tensor_is_beside_its_dynamic_size_is_part_of_the_form(bytecode: bool) -> None:
    class Sides(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten() * x.shape[1]

    model = Sides()
    run, graphs = compiled(model, bytecode=bytecode)
    tensors = [torch.randn(3, 2), torch.randn(5, 2), torch.randn(3, 4), torch.randn(2, 3, 2)]
    tensors += [torch.ones(3, 2, dtype=torch.int64), torch.randn(2, 3).t()]
    for x in tensors * 2:
        assert torch.equal(run(x), model(x))
    assert len(graphs) == len(tensors) - 1


def test_sizes_that_happen_to_agree_are_not_taken_for_the_same() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() * y.shape[0] + y.sum() * x.shape[0]

    model = Pair()
    run, graphs = compiled(model)
    for a, b in ((4, 4), (4, 6), (3, 9)):
        x, y = torch.randn(a), torch.randn(b)
        torch.testing.assert_close(run(x, y), model(x, y))
    assert len(graphs) == 1


def test_the_dynamic_dimensions_can_be_named() -> None:
    model = Scaling(2.0)
    run, graphs = compiled(model, CompileConfig(mode="eager", dynamic_dims={"x": (1,)}))
    for shape in ((2, 3, 4), (2, 9, 4), (2, 1, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), model(x))
    assert len(graphs) == 1
    run(torch.randn(3, 3, 4))
    assert len(graphs) == 2


def test_a_dynamic_dimension_of_an_argument_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"dynamic_dims: forward has no argument z; it takes x"):
        compile_model(Doubling(), CompileConfig(dynamic_dims={"z": (0,)}))


class FixedRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[0] * 1.0).view(4 if x.shape[0] == 4 else 5)


def test_a_model_that_fixes_its_size_has_code_for_each(caplog: pytest.LogCaptureFixture) -> None:
    model = FixedRows()
    run, graphs = compiled(model)
    for size in (4, 5, 4, 5):
        assert torch.equal(run(torch.zeros(size)), model(torch.zeros(size)))
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        run(torch.zeros(6))
    assert [text.partition(":")[0] for text in warnings(caplog)] == ["FixedRows"]
    assert len(graphs) >= 2


def test_only_the_size_that_the_model_fixes_has_code_for_each_value(caplog) -> None:
    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor, more: dict) -> torch.Tensor:
            return x @ more["weight"]

    model = Weighted()
    run, graphs = compiled(model)
    for size, inner in ((4, 3), (7, 3), (5, 2), (1, 3), (8, 2)):
        x, more = torch.randn(size, inner), {"weight": torch.randn(inner, 2)}
        torch.testing.assert_close(run(x, more), model(x, more))
    (text,) = warnings(caplog)
    assert "the model requires fixed values for size 0 of more, so each value is compiled separately" in text
    assert len(graphs) == 3


def test_a_size_said_to_be_dynamic_that_the_model_fixes_is_refused() -> None:
    run, _ = compiled(FixedRows(), CompileConfig(mode="eager", dynamic_dims={"x": (0,)}))
    with pytest.raises(UsageError, match="dynamic_dims: the model requires a fixed value"):
        run(torch.zeros(4))


@ROUTES
def test_a_branch_on_data_keeps_its_guards_and_is_told_once(bytecode: bool, caplog) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x * 5

    model = Branching()
    run, _ = compiled(model, bytecode=bytecode)
    for size in (4, 3, 1):
        for x in (torch.ones(size), -torch.ones(size)):
            assert torch.equal(run(x), model(x))
    (text,) = warnings(caplog)
    assert "Branching: cannot be traced as one graph, so its guards are checked" in text
    assert "\n" not in text


@ROUTES
def test_exceptions_of_the_model_pass_through(bytecode: bool) -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dim() != 2:
                raise ValueError("two dimensions, please")
            return x @ x.t()

    run, graphs = compiled(Picky(), bytecode=bytecode)
    with pytest.raises(ValueError, match=r"^two dimensions, please$"):
        run(torch.ones(3))
    with pytest.raises(TypeError, match=r"missing .* required positional argument"):
        run()
    assert torch.equal(run(torch.ones(2, 2)), torch.full((2, 2), 2.0))
    assert len(graphs) == 1


def test_an_error_of_a_tensor_operation_is_that_of_the_model() -> None:
    run, _ = compiled(Scaling())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        run(torch.ones(2, 5))
    assert run(torch.ones(2, 4)).shape == (2, 4)


def test_an_error_of_the_backend_for_people_is_not_wrapped() -> None:
    def refusing(graph: torch.fx.GraphModule, inputs: object):
        raise UsageError("no such operator")

    with pytest.raises(UsageError, match=r"^no such operator$"):
        compile_model(Doubling(), EAGER, backend=refusing)(torch.ones(2))


@ROUTES
def test_a_reassigned_buffer_is_refused_where_graphs_are_captured(bytecode: bool) -> None:
    model = nn.Sequential(nn.Identity(), Counting())
    before = model[1].calls
    run, _ = compiled(model, RECORDED, bytecode=bytecode)
    with pytest.raises(CaptureError, match=r"Sequential reassigns 1\.calls in its forward"):
        run(torch.zeros(2))
    assert model[1].calls is before
    with pytest.raises(CaptureError, match=r"1\.calls"):
        run(torch.zeros(2))


@pytest.mark.parametrize("registered", [True, False])
def test_a_tensor_in_the_place_of_none_is_refused_where_graphs_are_captured(registered) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if registered:
                self.register_buffer("last", None)
            else:
                self.last = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x + 1
            return self.last * 2

    model = Keeping()
    with pytest.raises(CaptureError, match="Keeping reassigns last in its forward"):
        compiled(model, RECORDED)[0](torch.zeros(2))
    assert model.last is None


@ROUTES
def test_a_reassigned_buffer_is_right_where_none_are(bytecode: bool) -> None:
    model = Counting()
    run, _ = compiled(model, bytecode=bytecode)
    assert [run(torch.zeros(2)).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    assert model.calls.item() == 3


def test_a_buffer_that_is_written_in_place_is_captured() -> None:
    class InPlace(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.calls.add_(1)

    run, _ = compiled(InPlace(), RECORDED)
    assert [run(torch.zeros(2)).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]


@ROUTES
def test_debug_names_the_guard_that_does_not_hold(bytecode: bool) -> None:
    model = Scaling(2.0)
    run, graphs = compiled(model, CompileConfig(mode="eager", debug=True), bytecode=bytecode)
    x = torch.ones(3, 4)
    assert torch.equal(run(x), run(x))
    run(torch.ones(7, 4))
    model.factor = 3.0
    with pytest.raises(CaptureError, match=r"does not hold: .*factor"):
        run(x)
    model.factor = 2.0
    run(x)
    assert len(graphs) == 1


def test_debug_names_a_branch_on_the_size() -> None:
    run, _ = compiled(Doubling(), CompileConfig(mode="eager", debug=True))
    run(torch.ones(4))
    with pytest.raises(CaptureError, match=r"4 <= L\['x'\]\.size\(\)\[0\]"):
        run(torch.ones(3))


def test_the_model_is_reachable() -> None:
    model = Scaling(2.0)
    run, _ = compiled(model)
    run(torch.ones(2, 4))
    assert run.state_dict().keys() == model.state_dict().keys()
    assert [p is q for p, q in zip(run.parameters(), model.parameters(), strict=True)] == [True] * 2
    assert (run.factor, run.up, run.training) == (2.0, model.up, True)
    assert "factor" in dir(run)
    assert "Scaling" in repr(run)
    with pytest.raises(AttributeError, match="'Scaling' object has no attribute 'fator'"):
        run.fator  # noqa: B018


def test_an_attribute_that_is_set_reaches_the_model_and_its_code() -> None:
    model = Scaling(2.0)
    run, _ = compiled(model)
    x = torch.ones(2, 4)
    before = run(x)
    run.factor = 4.0
    assert model.factor == 4.0
    torch.testing.assert_close(run(x), before * 2)


def test_training_and_evaluation_have_code_of_their_own() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    run, graphs = compiled(model)
    x = torch.ones(1000)
    assert (run(x) == 0).any()
    assert run.eval() is run
    assert torch.equal(run(x), x)
    assert run.train() is run
    assert (run(x) == 0).any()
    model.eval()
    assert torch.equal(run(x), x)
    assert len(graphs) == 2


def test_a_converted_model_is_traced_anew() -> None:
    run, graphs = compiled(Scaling())
    run(torch.ones(2, 4))
    assert run.to(torch.float64) is run
    assert run(torch.ones(2, 4, dtype=torch.float64)).dtype is torch.float64
    assert run.float()(torch.ones(2, 4)).dtype is torch.float32
    assert len(graphs) == 3


def test_gradients_reach_the_parameters_after_calls_without_them() -> None:
    model = Scaling()
    run, _ = compiled(model)
    x = torch.ones(3, 4)
    with torch.no_grad():
        assert not run(x).requires_grad
    run(x).sum().backward()
    assert torch.equal(model.up.bias.grad, torch.full((4,), 3.0))


def test_weights_that_are_loaded_count() -> None:
    model, other = Scaling(), Scaling()
    run, graphs = compiled(model)
    run(torch.ones(2, 4))
    run.load_state_dict(other.state_dict())
    assert torch.equal(run(torch.ones(2, 4)), other(torch.ones(2, 4)))
    assert len(graphs) == 1


def test_the_tensors_of_the_caller_come_out_unmarked() -> None:
    x = torch.ones(1, 4)
    compiled(Scaling())[0](x)
    assert not [name for name in vars(x) if "dynam" in name]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copies_are_refused(copied) -> None:
    with pytest.raises(TypeError, match="pickle or copy the original model and compile it again"):
        copied(compiled(Scaling())[0])


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: compile_model(Scaling(), EAGER), "is already compiled"),
        (lambda: torch.compile(Scaling()), "is already compiled"),
        (lambda: abs, "expected an nn.Module"),
    ],
)
def test_what_cannot_be_compiled_is_refused(made, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        compile_model(made(), EAGER)


@ROUTES
def test_hooks_of_the_root_run_around_the_code(bytecode: bool) -> None:
    to, model = Listed(), Scaling()
    run, graphs = compiled(model, bytecode=bytecode)
    run(torch.ones(2, 4))
    with layer_markers(model, emitter=to):
        run(torch.ones(2, 4))
    assert tree(to) == ["top"]
    assert "forward" not in vars(model)
    run(torch.ones(2, 4))
    assert (tree(to), len(graphs)) == (["top"], 1)


@ROUTES
def test_threads_trace_once_and_get_their_own_results(bytecode: bool) -> None:
    model = Scaling()
    run, graphs = compiled(model, bytecode=bytecode)
    done: list[int] = []

    def work(number: int) -> None:
        x = torch.full((number + 1, 4), float(number))
        for _ in range(20):
            assert torch.allclose(run(x), model(x))
            done.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), len(graphs)) == (80, 1)


@ROUTES
def test_code_that_dynamo_forgot_is_traced_anew_for_all_sizes(bytecode: bool) -> None:
    model = Scaling()
    run, _ = compiled(model, bytecode=bytecode)
    run(torch.ones(2, 4))
    torch._dynamo.reset()
    for size in (5, 3):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(x), model(x))


def test_a_model_of_too_many_forms_keeps_its_guards(monkeypatch, caplog) -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor, by: int) -> torch.Tensor:
            return x + by

    monkeypatch.setattr("tracekit.capture.compile.dispatch._MOST_FORMS", 3)
    run, _ = compiled(Shifted())
    assert [run(torch.zeros(2), by)[0].item() for by in range(8)] == list(range(8))
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("kind", ["decorated", "on the instance", "closure"])
@ROUTES
def test_a_forward_of_any_kind_is_traced(bytecode: bool, kind: str) -> None:
    factor = 5

    class Odd(nn.Module):
        @torch.no_grad()
        def decorated(self, x: torch.Tensor, *, add: int = 1) -> torch.Tensor:
            return x * 3 + add

        def closure(self, x: torch.Tensor, *, add: int = 1) -> torch.Tensor:
            return super().forward(x) if x is None else x * factor + add

        forward = decorated if kind == "decorated" else closure

    model = Odd()
    if kind == "on the instance":
        model.forward = lambda x, *, add=1: x * 7 + add
    run, graphs = compiled(model, bytecode=bytecode)
    for add in (1, 4):
        assert torch.equal(run(torch.ones(2), add=add), model(torch.ones(2), add=add))
    assert len(graphs) == 2


def test_the_code_is_written_where_depyf_is_there(tmp_path: Path, monkeypatch) -> None:
    depyf = SimpleNamespace(decompile=lambda code: f"# {code.co_name}")
    monkeypatch.setattr("tracekit.capture.compile.tracing.depyf", depyf)
    run, _ = compiled(Doubling(), CompileConfig(mode="eager", debug_dir=tmp_path / "d"))
    run(torch.ones(4))
    run(torch.ones(4, 2))
    written = sorted(path.name for path in (tmp_path / "d").iterdir())
    assert written == ["transformed_code.py", "transformed_code_2.py"]
    assert (tmp_path / "d" / "transformed_code.py").read_text() == "# forward"


def test_importing_capture_does_not_load_the_backend() -> None:
    code = "import tracekit.capture, sys; assert not [m for m in sys.modules if 'capture.compile' in m]"
    import subprocess

    subprocess.run([sys.executable, "-c", code], check=True)
