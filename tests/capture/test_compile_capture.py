"""``tracekit capture --compile`` records a model in compiled pieces; compiling and warm-up stay outside."""

from contextlib import nullcontext

import pytest

import tracekit
from tests.capture.places import Place, one_line
from tests.command import separately

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # Inductor uses what torch deprecates

#: Two linear layers around an operator at which the model is split.
MODEL = """
import torch
from torch import nn

@torch.library.custom_op("tracekit_test::attend", mutates_args=())
def attend(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@attend.register_fake
def _(x):
    return torch.empty_like(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return self.down(attend(self.up(x)))

def make():
    return Net().eval(), torch.zeros(3, 4)
"""
SPLIT = ("--compile", "--split", "tracekit_test::attend")


@pytest.fixture(autouse=True)
def _net(place: Place) -> None:
    place.write(MODEL)


def test_every_step_runs_the_pieces_in_order_and_nothing_else_is_recorded(place: Place) -> None:
    outcome = place.capture(
        *SPLIT, "--steps", 2, "--cudagraph-size", 3, "--cache-dir", "cache", "-o", "out.sqlite", "model.py:make"
    )
    assert outcome.code == 0, outcome
    assert "compiled 3 pieces" in outcome.err
    assert "no CUDA graphs, because there is no GPU" in outcome.err
    assert any((place.folder / "cache").iterdir())
    dataset = tracekit.parse(place.folder / "out.sqlite")
    calls = dataset.calls(["module", "step_id", "inputs"])
    assert calls.module.tolist() == ["Net", "Net"]
    assert calls.step_id.tolist() == [0, 1]
    ranges = dataset.ranges(["text", "marker"])
    pieces = ranges[ranges.marker == "piece"]
    assert len(pieces) == 2 * 3
    assert pieces.text.str.contains("submod_1").tolist() == [False, True, False] * 2
    kernels = dataset.kernels(["module", "method", "step_id"])
    inside = kernels[kernels.step_id.notna()]
    assert set(inside.module) == {"Net", "Net.down", "Net.up"}
    assert set(inside.module[inside.method == "compiled"]) >= {"Net.down", "Net.up"}


def test_equal_pieces_of_a_process_that_compiles_for_the_first_time_have_their_own_modules(place: Place) -> None:
    args = ("--engine", "torch", *SPLIT, "-o", "out.sqlite", "model.py:make")
    outcome = separately("capture", *args, cwd=place.folder, TORCHINDUCTOR_CACHE_DIR=str(place.folder / "inductor"))
    assert outcome.code == 0, outcome
    kernels = tracekit.parse(place.folder / "out.sqlite").kernels(["op", "module"])
    assert set(kernels.module[kernels.op == "aten::addmm"]) == {"Net.up", "Net.down"}


@pytest.mark.parametrize("operator", ["aten::nosuch", "nosuch::operator", "tracekit_test::attend.other"])
def test_an_operator_that_the_model_does_not_run_is_an_error_that_lists_those_it_runs(
    place: Place, operator: str
) -> None:
    said = one_line(place.capture(*SPLIT, "--split", operator, "--no-cache", "model.py:make"))
    listed = "aten::addmm, aten::linear, aten::t, tracekit_test::attend"
    assert f"no operator {operator} to split the model at; it runs {listed}" in said


def test_graphs_are_captured_inside_the_window_and_pieces_compiled_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.capture.compile import backend, counters, cudagraph
    from tracekit.capture.compile_config import CompileConfig
    from tracekit.capture.program import Settings
    from tracekit.capture.run import load, run

    # CUDA's part is stood in for by what remembers captures.
    monkeypatch.setattr(backend, "graphs_for", lambda _wanted: cudagraph.StandInGraphs())
    counters.reset()
    at_opening: list[dict[str, int]] = []

    class Window:
        def open(self) -> None:
            at_opening.append(counters.snapshot())

        def drop(self) -> None: ...
        def close(self) -> None: ...

    compiling = CompileConfig(
        splitting_ops=("tracekit_test::attend",), cudagraph_sizes=(3,), use_cache=False, mode="eager"
    )
    figures: dict[str, int] = {}
    run(load("model.py:make"), Settings(compiling=compiling), Window(), nullcontext(), figures)
    assert (at_opening[0]["backend_compilations"], at_opening[0]["graphs_captured"]) == (2, 0)
    assert (figures["backend_compilations"], figures["graphs_captured"]) == (2, 2)
