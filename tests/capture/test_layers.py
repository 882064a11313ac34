"""Markers on whole models: nesting, sharing, failing, toggling, taking off."""

import copy
import pickle
import threading
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.models import Cnn, Encoder, Failing, Tagger, by_path, counted, markers, tree
from tests.test_readmes import ROOT, block
from tracekit.capture import MemoryEmitter, layer_marker, layer_markers, step
from tracekit.capture.marks import unwrapped

pytestmark = pytest.mark.torch


def run(model: nn.Module, *args: object, **kwargs: Any) -> MemoryEmitter:
    to = MemoryEmitter()
    with layer_markers(model, emitter=to, **kwargs), torch.no_grad():
        model(*args)
    return to


def test_ranges_nest_as_modules_and_one_that_is_shared_or_called_twice_is_marked_once_for_every_call() -> None:
    stem = ["  top.stem", *(f"    top.stem.{number}" for number in range(3))]
    assert tree(run(Cnn(), torch.randn(1, 3, 8, 8))) == ["top", *stem, "  top.pool", "  top.head"]
    to = run(Encoder(), torch.arange(6).view(2, 3))
    layer = ["  top.layers.{}", "    top.layers.{}.norm", "    top.layers.{}.up"]
    shared = "    top.layers.0.act"
    lines = [[line.format(at) for line in layer] + [shared] for at in (0, 1, 1)]
    assert tree(to) == ["top", "  top.embed", *chain.from_iterable(lines)]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"skip": (nn.Conv2d, "*.stem.2", "top.h*")}, "top top.stem top.stem.1 top.pool"),
        ({"depth": 1}, "top top.stem top.pool top.head"),
        ({"depth": 1, "prefix": "a.b"}, "a.b a.b.stem a.b.pool a.b.head"),
        ({"depth": 1, "prefix": ""}, " stem pool head"),
        ({"depth": 0, "prefix": "a.b"}, "a.b"),
    ],
)
def test_modules_are_skipped_by_type_by_pattern_and_by_depth_and_named_below_the_prefix(options, paths: str) -> None:
    assert set(counted(run(Cnn(), torch.randn(1, 3, 8, 8), **options))) == set(paths.split(" "))


def test_identity_and_dropout_are_skipped_unless_asked_for() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.Dropout2d(), nn.ReLU())
    assert set(counted(run(model.eval(), torch.randn(1, 2, 3, 4)))) == {"top", "top.3"}
    everything = counted(run(model, torch.randn(1, 2, 3, 4), skip=()))
    assert set(everything) == {"top", "top.0", "top.1", "top.2", "top.3"}


def test_a_run_that_is_interrupted_or_raises_does_not_enclose_the_next() -> None:
    model, to = Failing(KeyboardInterrupt()), MemoryEmitter()
    handle = layer_markers(model, emitter=to)
    for _ in range(3):
        with step("run", emitter=to), pytest.raises(KeyboardInterrupt):
            model(torch.randn(1))
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(1))
    model.inner[1].error = ValueError("x")
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            model(torch.randn(1))
        assert to.lane.open == []
    handle.remove()
    inside = ["top", "  top.inner", "    top.inner.1"]
    assert tree(to) == [*["run", *("  " + line for line in inside)] * 3, *inside * 3]
    assert tree(run(Failing(ValueError("x"), caught=True), torch.zeros(1))) == [*inside, "  top.after"]


class Toggling(nn.Module):
    """Changes its own markers in the middle of a call, then calls itself."""

    def __init__(self, change) -> None:
        super().__init__()
        self.child, self.change = nn.ReLU(), change

    def forward(self, x: torch.Tensor, deeper: int = 0) -> torch.Tensor:
        self.change(deeper)
        x = self.child(x)
        return self(x, deeper - 1) if deeper else x


@pytest.mark.parametrize("pattern", [1, 6, 9, 14])
def test_toggling_between_pre_hook_and_hook_keeps_the_balance(pattern: int) -> None:
    to = MemoryEmitter()

    def change(deeper: int) -> None:
        handle.enabled = bool(pattern >> deeper & 1)

    model = Toggling(change)
    handle = layer_markers(model, emitter=to, enabled=bool(pattern & 1))
    for _ in range(2):
        model(torch.randn(1), 3)
        assert to.lane.open == []
    tree(to)


def test_removing_while_another_thread_is_in_a_call_lets_that_call_end() -> None:
    to, inside, removed = MemoryEmitter(), threading.Event(), threading.Event()

    def wait(_deeper: int) -> None:
        inside.set()
        removed.wait(20)

    model = Toggling(wait)
    handle = layer_markers(model, emitter=to)
    other = threading.Thread(target=model, args=(torch.randn(1),))
    other.start()
    assert inside.wait(20)
    handle.remove()
    removed.set()
    other.join()
    model(torch.randn(1))
    assert tree(to, other.ident) == ["top"]
    assert not [name for module in model.modules() for name in vars(module) if "marks" in name]


def test_marking_twice_marks_once_and_the_first_handle_keeps_the_marks() -> None:
    model, to = Tagger(), MemoryEmitter()
    with layer_markers(model, emitter=to):
        with layer_markers(model, prefix="again", emitter=to) as second:
            model(torch.randn(1, 2, 6))
            assert second.paths == []
        model(torch.randn(1, 2, 6))
    model(torch.randn(1, 2, 6))
    assert counted(to) == {"top": 2, "top.lstm": 2, "top.out": 2}


def test_a_copy_of_a_marked_model_is_not_marked() -> None:
    model, to = Tagger(), MemoryEmitter()
    with layer_markers(model, emitter=to, backward=True):
        content = pickle.dumps(model)
        assert b"tracekit" not in content
        for twin in (copy.deepcopy(model), pickle.loads(content)):
            twin(torch.randn(1, 2, 6)).sum().backward()
            assert to.events == []
            with layer_markers(twin, emitter=to):
                twin(torch.randn(1, 2, 6))
            assert tree(to) == ["top", "  top.lstm", "  top.out"]
            to.events.clear()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_modules_in_torchscript_are_left_alone_and_named() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2)))
    traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2))
    model, to = nn.Sequential(scripted, traced, nn.ReLU()), MemoryEmitter()
    with layer_markers(model, emitter=to) as handle:
        model(torch.zeros(1, 4))
        assert {"top.0", "top.0.0", "top.1.0"} <= set(handle.silent)
    assert [line for line in tree(to) if "top.1" not in line] == ["top", "  top.2"]
    assert {marker.cause for marker in markers(to)} == {None}
    assert unwrapped(scripted) is scripted


def test_a_call_marked_by_hand_tells_what_it_was_given_and_what_it_returned() -> None:
    module, to = nn.Linear(4, 2), MemoryEmitter()
    x = torch.randn(3, 4)
    for _ in range(2):
        with layer_marker("top.head", module, (x,), {"scale": x}, emitter=to) as call:
            call.result = module(x)
    assert tree(to) == ["top.head"] * 2
    said = by_path(to)["top.head"]
    assert (said.inputs, said.kwargs) == (((3, 4),), {"scale": ((3, 4),)})
    assert by_path(to, result=True)["top.head"].outputs == ((3, 2),)


def test_a_run_in_which_nothing_was_marked_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with layer_markers(nn.ReLU(), emitter=MemoryEmitter()):
        pass
    assert "no call of 'top' or the modules below it was marked (1 modules)" in caplog.text


def test_the_readme_s_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.TransformerEncoderLayer(4, 2, 4)
    exec(block("markers", ROOT / "tracekit/capture/README.md"), {"model": model, "batches": [torch.zeros(2, 3, 4)] * 2})
    assert capsys.readouterr().out == "['top.self_attn.out_proj']\n"
