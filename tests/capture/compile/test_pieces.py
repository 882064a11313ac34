"""Every piece that runs is marked: which, at what size, with what code, and how."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.compile import COMPILING
from tests.capture.compile.models import ATTENTION, Function, Llama, Silly, compiled, ids
from tests.capture.models import tree
from tracekit.capture import MemoryEmitter, layer_markers
from tracekit.capture.compile import CompileConfig, PiecewiseBackend, compile_model, counters
from tracekit.capture.emit import routed_to
from tracekit.markers.base import ModuleMarker, PieceMarker
from tracekit.trace.decoding import decode

pytestmark = COMPILING


def marked(call: Callable[[], object]) -> list[str]:
    with routed_to(to := MemoryEmitter()):
        call()
    texts = [event.text for event in to.events if event.text is not None]
    assert len(to.events) == 2 * len(texts)
    decoded = decode(texts)
    pieces = [decoded.markers[at] for at in decoded.of_text]
    assert {type(piece) for piece in pieces} == {PieceMarker}
    assert len({piece.graph for piece in pieces}) == 1
    return [f"{piece.name} {piece.size} {piece.code} {piece.way}" for piece in pieces]


def running(model: nn.Module, *first: torch.Tensor, **settings: Any) -> Callable[..., Any]:
    run = compiled(model, *first, **settings)
    run(*first)
    return run


def test_a_mark_tells_piece_size_code_and_way(hollow: None) -> None:
    run = running(Silly(), torch.randn(9), mode="inductor", splitting_ops=(ATTENTION,), compile_ranges=(8,))
    said = [
        f"submod_{number} 3 {how}" for number, how in enumerate(["1-8 compiled", "None eager"] * 2 + ["1-8 compiled"])
    ]
    assert marked(lambda: run(torch.randn(3))) == said


@pytest.mark.parametrize(
    ("model", "warmups", "runs"),
    [
        (nn.ReLU(), 1, ["2 captured", "2 replayed", "3 eager", "4 captured", "2 replayed"]),
        (Function(lambda x: x.mul_(2) + 1), 2, ["2 eager", "2 eager", "2 captured", "2 replayed"]),
    ],
)
def test_warm_ups_are_part_of_a_graph_capture_unless_they_write_to_inputs(model: Any, warmups: int, runs: Any) -> None:
    settings = {"cudagraph_sizes": (2, 4), "cudagraph_warmups": warmups, "graph_capture": "record"}
    call = running(model, torch.randn(9), mode="eager", **settings)
    said = [marked(lambda run=run: call(torch.randn(int(run[0])))) for run in runs]
    assert said == [[f"submod_0 {run[0]} None {run[2:]}"] for run in runs]


@pytest.mark.parametrize(("size", "ways"), [(2, ["captured", "replayed"]), (3, ["eager", "eager"])])
def test_a_graph_of_fixed_shapes_is_captured_if_its_size_is_listed(size: int, ways: list[str]) -> None:
    config = CompileConfig(mode="eager", cudagraph_sizes=(2,), graph_capture="record")
    run = torch.compile(nn.ReLU(), backend=PiecewiseBackend(config), dynamic=False)
    said = [marked(lambda: run(torch.randn(size))) for _ in range(2)]
    assert said == [[f"submod_0 {size} None {way}"] for way in ways]


def test_a_piece_whose_shapes_vary_otherwise_too_is_neither_captured_nor_specialised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outer = Function(lambda x, y: x[:, None] * y)
    sizes = {"compile_sizes": (2,), "cudagraph_sizes": (2,)}
    with counters.expect(graphs_captured=0, backend_compilations=1):
        run = running(outer, torch.randn(5), torch.randn(7), mode="eager", graph_capture="record", **sizes)
        for sizes in ((2, 7), (2, 9), (3, 2)):
            x, y = map(torch.randn, sizes)
            assert torch.equal(run(x, y), x[:, None] * y)
    assert "the shapes of 1 pieces depend on more than one dynamic size" in caplog.text


class _Masked(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ids * 2, mask.cumsum(0)


@pytest.mark.parametrize("guards", [True, False])
def test_dimensions_that_are_equal_at_the_first_call_are_one_size(guards: bool) -> None:
    config = CompileConfig(mode="eager", compile_sizes=(2,), cudagraph_sizes=(2,), graph_capture="record")
    run = compile_model(_Masked(), config, guards=guards)
    run(torch.randn(8, 3), torch.randn(8, 3))
    with counters.expect(graphs_seen=0, graphs_captured=1):
        for size in (2, 5, 2):
            given = torch.randn(size, 3), torch.randn(size, 3)
            assert all(map(torch.equal, run(*given), _Masked()(*given)))
    if guards:  # other sizes than at the first call are traced again
        given = torch.randn(4, 3), torch.randn(5, 3)
        assert all(map(torch.equal, run(*given), _Masked()(*given)))


def test_dimensions_that_are_named_are_sizes_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    dims = {"ids": (0,), "mask": (0,)}
    config = CompileConfig(mode="eager", cudagraph_sizes=(2,), graph_capture="record", dynamic_dims=dims)
    run = compile_model(_Masked(), config)
    run(torch.randn(8, 3), torch.randn(8, 3))
    with counters.expect(graphs_seen=0, graphs_captured=0):
        run(torch.randn(2, 3), torch.randn(4, 3))
    assert "let fewer dimensions be dynamic" in caplog.text


def test_a_piece_that_raises_closes_its_range() -> None:
    run = running(nn.Linear(3, 3), torch.randn(9, 3), mode="eager")
    with routed_to(to := MemoryEmitter()), pytest.raises(RuntimeError, match="cannot be multiplied"):
        run(torch.randn(2, 4))
    assert [event.text is None for event in to.events] == [False, True]


def test_graphs_have_numbers_of_their_own() -> None:
    with routed_to(to := MemoryEmitter()):
        for _ in range(2):
            torch._dynamo.reset()
            running(nn.ReLU(), torch.randn(9), mode="eager")
    markers = decode([event.text for event in to.events if event.text is not None]).markers
    assert len({marker.graph for marker in markers}) == 2


@pytest.mark.parametrize("before", [True, False])
def test_layer_markers_break_no_trace_and_pieces_lie_in_the_call_of_the_model(before: bool) -> None:
    model, first, to = Llama(2), ids(6), MemoryEmitter()
    backend = PiecewiseBackend(CompileConfig(mode="eager", splitting_ops=(ATTENTION,)))
    with routed_to(to):
        handle = layer_markers(model, emitter=to) if before else None
        run = compiled(model, *first, backend=backend)
        handle = handle or layer_markers(run, emitter=to)
        with handle, counters.expect(graphs_seen=1, pieces_seen=5):
            assert torch.equal(run(*first), model(*first))
    assert len(backend.splits) == 1
    shown = tree(to)
    pieces = [f"submod_{number}" for number in range(5)]
    assert shown[:6] == ["top", *(f"  {piece}" for piece in pieces)]
    decoded = decode([event.text for event in to.events if event.text is not None])
    assert {type(marker) for marker in decoded.markers} == {PieceMarker, ModuleMarker}
