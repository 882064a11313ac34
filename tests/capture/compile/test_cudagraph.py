"""Capture and replay: the stand-in in full, CUDA's own part in the order of its calls."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.compile import COMPILING
from tests.capture.compile.models import ATTENTION, Function, compiled
from tracekit.capture.compile import counters, cudagraph, piece
from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.cudagraph import CudaGraphs, StandInGraphs, weak_tensor
from tracekit.capture.compile_config import CompileConfig

pytestmark = COMPILING


def test_the_stand_in_runs_what_it_is_given_and_remembers_the_results_of_the_capture() -> None:
    ran: list[float] = []

    def double(x: torch.Tensor) -> tuple[torch.Tensor]:
        ran.append(float(x.sum()))
        return (x * 2,)

    replay = StandInGraphs().capture_graph(double, (x := torch.ones(2),), warmups=2)
    assert ran == [2.0] * 3
    assert [replay(given)[0].tolist() for given in (x, torch.zeros(2))] == [[2, 2], [0, 0]]
    assert ran[3:] == [0.0]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA, in order; the graph replays what ran while it was captured."""
    said: list[str] = []
    graph = SimpleNamespace(
        capture_begin=lambda pool: said.append(f"begin in {pool}"),
        capture_end=lambda: said.append("end"),
        replay=lambda: said.append("replay"),
    )
    stream = SimpleNamespace(wait_stream=lambda _other: said.append("wait"))
    cuda = {
        "CUDAGraph": lambda: graph,
        "Stream": lambda: stream,
        "stream": lambda _stream: nullcontext(),
        "current_stream": lambda: stream,
        "graph_pool_handle": lambda: "the pool",
        "is_current_stream_capturing": lambda: False,
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "empty_cache": lambda: said.append("empty"),
    }
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(gc, "collect", lambda: said.append("collect"))
    return said


def test_a_capture_warms_up_aside_and_records_without_running(said: list[str]) -> None:
    def run(_x: torch.Tensor) -> tuple[int]:
        said.append("run")
        return (1,)

    replay = CudaGraphs().capture_graph(run, (torch.ones(2),), warmups=2)
    assert said == ["collect", "empty", "wait", "run", "run", "begin in the pool", "run", "end", "wait"]
    said.clear()
    assert [replay(), replay()] == [(1,), (1,)]
    assert said == ["replay", "replay"]


def test_garbage_is_collected_before_the_first_capture_alone_and_one_that_fails_is_ended(said: list[str]) -> None:
    def fail() -> tuple[int]:
        raise ValueError("mine")

    graphs = CudaGraphs()
    graphs.capture_graph(lambda: (), ())
    with pytest.raises(ValueError, match="mine"):
        graphs.capture_graph(fail, ())
    assert said[-1] == "end"
    assert (said.count("collect"), said.count("empty")) == (1, 1)


def test_the_captured_call_holds_its_results_and_later_ones_do_not(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudagraph, "weak_tensor", lambda value: f"weak {value}")
    replay = CudaGraphs().capture_graph(lambda: ("result",), ())
    assert [replay(), replay(), replay()] == [("result",), ("weak result",), ("weak result",)]


def test_what_is_no_plain_cuda_tensor_is_kept_as_it_is() -> None:
    for value in (torch.ones(2), nn.Parameter(torch.ones(2)), 3, None):
        assert weak_tensor(value) is value


SETTINGS: dict[str, Any] = {"mode": "eager", "cudagraph_sizes": (2,)}


def test_results_of_captured_graphs_are_not_overwritten_by_the_next_call(bound: None) -> None:
    first, x = torch.randn(8), torch.zeros(2)
    run = compiled(nn.Sigmoid(), first, **SETTINGS)
    run(first)
    found = [run(x.fill_(number)) for number in range(3)]
    assert [item[0] for item in found] == [torch.sigmoid(x.fill_(n))[0] for n in range(3)]
    torch._dynamo.reset()
    run = compiled(nn.Sigmoid(), first, copy_outputs=False, **SETTINGS)
    run(first)
    assert run(x.fill_(0)) is run(x.fill_(1))


def test_a_piece_without_a_size_is_captured_once_and_its_results_are_copied_at_every_size(bound: None) -> None:
    def fixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.sigmoid(y)
        torch.ops.tracekit_tests.attention(x, x, x, x)
        return x + 1, z

    first, y = torch.randn(8), torch.zeros(3)
    with counters.expect(graphs_captured=1 + 1):
        run = compiled(Function(fixed), first, splitting_ops=(ATTENTION,), **SETTINGS)
        run(first, y)
        found = [run(torch.randn(size), y.fill_(number))[1] for number, size in enumerate((5, 6, 2))]
    assert [item[0] for item in found] == [torch.sigmoid(y.fill_(number))[0] for number in range(3)]


def test_inputs_that_moved_are_run_without_the_graph_and_said_once(
    bound: None, caplog: pytest.LogCaptureFixture
) -> None:
    piece._warn_moved.cache_clear()
    first = torch.randn(8)
    run = compiled(nn.Sigmoid(), first, **SETTINGS)
    kept = [torch.randn(2) for _ in range(4)]
    assert all(torch.equal(run(x), torch.sigmoid(x)) for x in (first, *kept))
    assert caplog.text.count("set copy_inputs") == 1


def test_what_needs_a_gradient_is_not_captured(bound: None) -> None:
    with torch.enable_grad(), counters.expect(graphs_captured=0):
        model, first = nn.Linear(3, 3), torch.randn(8, 3)
        run = compiled(model, first, copy_inputs=True, **SETTINGS)
        for x in (first, torch.randn(2, 3), torch.randn(2, 3)):
            assert run(x).requires_grad


def refuse(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("operation not permitted when stream is capturing\nmore")


@pytest.mark.parametrize(
    ("name", "stand_in", "warnings"),
    [
        ("capture_graph", refuse, ["operation not permitted when stream is capturing"]),
        ("ready", lambda _self: False, []),  # inside of somebody else's graph capture, of which pieces become part
    ],
)
def test_a_piece_that_cannot_be_captured_runs_as_it_is(name, stand_in, warnings, monkeypatch, caplog) -> None:
    monkeypatch.setattr(StandInGraphs, name, stand_in)
    first = torch.randn(8)
    run = compiled(nn.ReLU(), first, graph_capture="record", **SETTINGS)
    with counters.expect(graphs_captured=0):
        for x in (first, torch.randn(2), torch.randn(2)):
            assert torch.equal(run(x), x.relu())
    said = [f"submod_0 cannot be captured as a CUDA graph at size 2: {reason}" for reason in warnings]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == said


def test_cuda_graphs_are_used_where_there_is_a_gpu(said: list[str]) -> None:
    for wanted in ("auto", "cuda"):
        backend = PiecewiseBackend(CompileConfig(cudagraph_sizes=(1,), graph_capture=wanted))
        assert isinstance(backend.graphs, CudaGraphs)
    assert PiecewiseBackend(CompileConfig(cudagraph_sizes=(1,), graph_capture="off")).graphs is None
