"""``tracekit capture --compile`` records a model in compiled pieces; compiling and warm-up stay outside."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.capture import places
from tests.capture.places import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.capture.places import Place

pytestmark = [
    pytest.mark.torch,
    # Inductor itself uses what torch deprecates.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ROOT = Path(__file__).parents[2]
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

def loop():
    make()[0](torch.zeros(3, 4))
"""
#: Two layers with attention, as PyTorch offers it.
ATTENTIVE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        return x + nn.functional.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))

def make():
    return nn.Sequential(Layer(), Layer()).eval(), torch.zeros(3, 4, 8)
"""
SPLIT = ("--compile", "--split", "tracekit_test::attend")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for here in places.place(tmp_path, monkeypatch):
        here.write(MODEL, f"net_{tmp_path.name}.py")
        yield here


@pytest.fixture
def target(place: Place) -> str:
    (path,) = place.folder.glob("net_*.py")
    return path.name


def test_every_step_runs_the_pieces_in_order_and_nothing_else_is_recorded(place: Place, target: str) -> None:
    outcome = place.capture(
        *SPLIT, "--steps", 2, "--cudagraph-size", 3, "--cache-dir", "cache", "-o", "out.sqlite", f"{target}:make"
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


def test_equal_pieces_of_a_process_that_compiles_for_the_first_time_have_their_own_modules(
    place: Place, target: str
) -> None:
    command = [sys.executable, "-m", "tracekit", "capture", "--engine", "torch", *SPLIT, "-o", "out.sqlite"]
    cache = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(place.folder / "inductor"), "PYTHONPATH": str(ROOT)}
    for state in ("cold", "warm"):
        subprocess.run(
            [*command, "--force", f"{target}:make"], cwd=place.folder, env=cache, check=True, capture_output=True
        )
        kernels = tracekit.parse(place.folder / "out.sqlite", force=True).kernels(["op", "module"])
        assert set(kernels.module[kernels.op == "aten::addmm"]) == {"Net.up", "Net.down"}, state


@pytest.mark.parametrize(
    "options",
    [["--split", "a::b"], ["--compile-size", 4], ["--cudagraph-size", 4], ["--no-cache"]],
    ids=lambda options: options[0],
)
def test_options_of_compiling_need_it(place: Place, target: str, options: list[object]) -> None:
    said = one_line(place.capture(*options, f"{target}:make"), code=2)
    assert f"{options[0]} needs --compile" in said


def test_a_script_cannot_be_compiled(place: Place, target: str) -> None:
    assert "needs a function" in one_line(place.capture("--compile", target), code=2)


def test_a_function_that_runs_steps_itself_gives_nothing_to_compile(place: Place, target: str) -> None:
    said = one_line(place.capture("--compile", "--no-cache", f"{target}:loop"))
    assert "returned no model to compile; expected (model, inputs)" in said


def test_an_operator_of_no_such_form_is_a_wrong_call(place: Place, target: str) -> None:
    said = one_line(place.capture("--compile", "--split", "attend", f"{target}:make"), code=2)
    assert "'attend' is not an operator; expected ns::op" in said


@pytest.mark.parametrize("operator", ["aten::nosuch", "nosuch::operator", "tracekit_test::attend.other"])
def test_an_operator_that_the_model_does_not_run_is_an_error_that_lists_those_it_runs(
    place: Place, target: str, operator: str
) -> None:
    said = one_line(place.capture(*SPLIT, "--split", operator, "--no-cache", f"{target}:make"))
    assert f"no operator {operator} to split the model at; it runs aten::linear, tracekit_test::attend" in said


def test_a_model_is_split_at_a_function_that_is_no_operator_by_itself(place: Place) -> None:
    place.write(ATTENTIVE, "attentive.py")
    split = ("--compile", "--no-cache", "--split", "aten::scaled_dot_product_attention")
    outcome = place.capture(*split, "-o", "out.sqlite", "attentive.py:make")
    assert outcome.code == 0, outcome
    assert "compiled 5 pieces" in outcome.err


def test_graphs_are_captured_inside_the_window_and_pieces_compiled_before_it(
    place: Place, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.capture.compile import backend, counters, cudagraph
    from tracekit.capture.compiling import Compiling
    from tracekit.capture.program import Settings
    from tracekit.capture.run import run
    from tracekit.capture.target import load

    # CUDA's part is stood in for by what remembers captures.
    monkeypatch.setattr(backend, "graphs_for", lambda _wanted: cudagraph.StandInGraphs())
    monkeypatch.setattr(Compiling, "captures_graphs", True)
    counters.reset()
    at_opening: list[dict[str, int]] = []

    class Window:
        def open(self) -> None:
            at_opening.append(counters.snapshot())

        def drop(self) -> None: ...
        def close(self) -> None: ...

    compiling = Compiling(
        splitting_ops=("tracekit_test::attend",), cudagraph_sizes=(3,), use_cache=False, backend="eager"
    )
    figures = run(load(f"{target}:make"), Settings(compiling=compiling), Window(), nullcontext())
    assert (at_opening[0]["backend_compilations"], at_opening[0]["graphs_captured"]) == (2, 0)
    assert (figures["backend_compilations"], figures["graphs_captured"]) == (2, 2)


@pytest.mark.parametrize("engine", ["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def test_operators_of_compiled_pieces_are_marked(place: Place, target: str, engine: str) -> None:
    options = ("--ops", "--steps", 1, "--no-cache", "--engine", engine, "-o", "out.sqlite")
    outcome = place.capture(*SPLIT, *options, f"{target}:make")
    assert outcome.code == 0, outcome
    assert "compiled 3 pieces" in outcome.err
    ranges = tracekit.parse(place.folder / "out.sqlite").ranges(["text", "marker"])
    assert (ranges.marker == "piece").sum() == 3
    assert ranges.text.str.startswith("tracekit_test::attend").any()
