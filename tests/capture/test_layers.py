"""Markers on whole models: nesting, sharing, failing, toggling, taking off."""

from __future__ import annotations

import copy
import pickle
import threading
from itertools import chain

import pytest
import torch
from torch import nn

from tests.capture.models import (
    Cnn,
    Encoder,
    Failing,
    Tagger,
    by_path,
    counted,
    hooks,
    markers,
    tree,
)
from tests.test_readmes import ROOT, block
from tracekit.capture import Listed, layer_marker, layer_markers, step
from tracekit.errors import UsageError

pytestmark = pytest.mark.torch


def run(model: nn.Module, *args: object, **kwargs: object) -> Listed:
    """One marked forward pass."""
    to = Listed()
    options = {key: kwargs.pop(key) for key in ("skip", "depth", "prefix") if key in kwargs}
    with layer_markers(model, emitter=to, **options), torch.no_grad():
        model(*args, **kwargs)
    return to


def test_ranges_nest_as_the_modules_of_a_cnn() -> None:
    assert tree(run(Cnn(), torch.randn(1, 3, 8, 8))) == [
        "top",
        "  top.stem",
        "    top.stem.0",
        "    top.stem.1",
        "    top.stem.2",
        "  top.pool",
        "  top.head",
    ]


def test_a_shared_module_and_one_called_twice_are_marked_once_for_every_call() -> None:
    to = run(Encoder(), torch.arange(6).view(2, 3))
    layer = ["  top.layers.{}", "    top.layers.{}.norm", "    top.layers.{}.up"]
    shared = "    top.layers.0.act"
    lines = [[line.format(at) for line in layer] + [shared] for at in (0, 1, 1)]
    assert tree(to) == ["top", "  top.embed", *chain.from_iterable(lines)]


def test_an_lstm_tells_its_weights_and_all_its_outputs() -> None:
    to = run(Tagger(), torch.randn(2, 4, 6))
    said, result = by_path(to)["top.lstm"], by_path(to, result=True)["top.lstm"]
    assert [param.name for param in said.params] == [
        "weight_ih_l0",
        "weight_hh_l0",
        "bias_ih_l0",
        "bias_hh_l0",
    ]
    assert result.outputs == ((2, 4, 5), (1, 2, 5), (1, 2, 5))


@pytest.mark.parametrize("prefix", ["top", "", "a.b"])
def test_the_prefix_names_the_model_itself(prefix: str) -> None:
    to = run(Tagger(), torch.randn(1, 2, 6), prefix=prefix)
    assert set(counted(to)) == {
        prefix,
        *(f"{prefix}.{name}".strip(".") for name in ("lstm", "out")),
    }


def test_a_prefix_that_is_no_dotted_name_is_refused() -> None:
    with pytest.raises(UsageError, match="not a module path"):
        layer_markers(nn.ReLU(), prefix="a..b", emitter=Listed())


def test_identity_and_dropout_are_skipped_unless_asked_for() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.Dropout2d(), nn.ReLU())
    assert set(counted(run(model.eval(), torch.randn(1, 2, 3, 4)))) == {"top", "top.3"}
    everything = counted(run(model, torch.randn(1, 2, 3, 4), skip=()))
    assert set(everything) == {"top", "top.0", "top.1", "top.2", "top.3"}


def test_modules_are_skipped_by_type_by_pattern_and_by_depth() -> None:
    image = torch.randn(1, 3, 8, 8)
    assert set(counted(run(Cnn(), image, skip=(nn.Conv2d, "*.stem.2", "top.h*")))) == {
        "top",
        "top.stem",
        "top.stem.1",
        "top.pool",
    }
    assert set(counted(run(Cnn(), image, depth=1))) == {"top", "top.stem", "top.pool", "top.head"}
    assert set(counted(run(Cnn(), image, depth=0, prefix="a.b"))) == {"a.b"}
    assert set(counted(run(Cnn(), image, depth=0, prefix=""))) == {""}


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x")])
def test_a_forward_that_raises_leaves_nothing_open(error: Exception) -> None:
    model, to = Failing(error), Listed()
    with layer_markers(model, emitter=to):
        for _ in range(2):
            with pytest.raises(type(error)):
                model(torch.randn(1))
        assert to.lane.open == []
    assert tree(to) == ["top", "  top.inner", "    top.inner.1"] * 2


def test_an_error_caught_in_the_model_leaves_the_nesting_right() -> None:
    to = run(Failing(ValueError("x"), caught=True), torch.randn(1))
    assert tree(to) == ["top", "  top.inner", "    top.inner.1", "  top.after"]


def test_an_interrupt_that_torch_hides_from_hooks_is_closed_by_the_enclosing_call() -> None:
    to = run(Failing(KeyboardInterrupt(), caught=True), torch.randn(1))
    assert tree(to)[:3] == ["top", "  top.inner", "    top.inner.1"]


def test_an_interrupt_of_the_whole_run_is_closed_when_the_markers_come_off() -> None:
    model, to = Failing(KeyboardInterrupt()), Listed()
    with pytest.raises(KeyboardInterrupt), layer_markers(model, emitter=to):
        model(torch.randn(1))
    assert tree(to) == ["top", "  top.inner", "    top.inner.1"]
    assert hooks(model) == 0


def test_an_interrupted_run_does_not_enclose_the_next() -> None:
    model, to = Failing(KeyboardInterrupt()), Listed()
    handle = layer_markers(model, emitter=to)
    for _ in range(3):
        with step("run", emitter=to), pytest.raises(KeyboardInterrupt):
            model(torch.randn(1))
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(1))
    model.inner[1].error = ValueError("x")
    with pytest.raises(ValueError, match="x"):
        model(torch.randn(1))
    handle.remove()
    inside = ["top", "  top.inner", "    top.inner.1"]
    assert tree(to) == [*["run", *("  " + line for line in inside)] * 3, *inside * 2]


def test_a_model_that_calls_itself_is_no_interrupted_one() -> None:
    to = Listed()
    with layer_markers(model := Toggling(2, lambda _deeper: None), emitter=to):
        model(torch.randn(1))
    assert [line for line in tree(to) if "child" not in line] == ["top", "  top", "    top"]


def test_a_pre_hook_of_another_that_raises_leaves_nothing_open() -> None:
    model, to = nn.Sequential(nn.ReLU()), Listed()

    def fail(*_args: object) -> None:
        raise ValueError

    model[0].register_forward_pre_hook(fail)
    with layer_markers(model, emitter=to):
        model[0].register_forward_pre_hook(fail, prepend=True)
        with pytest.raises(ValueError):  # noqa: PT011
            model(torch.randn(1))
    assert tree(to) == ["top"]


class Toggling(nn.Module):
    """Changes its own markers in the middle of a call, then calls itself."""

    def __init__(self, deeper: int, change) -> None:
        super().__init__()
        self.child = nn.ReLU()
        self.deeper = deeper
        self.change = change

    def forward(self, x: torch.Tensor, deeper: int | None = None) -> torch.Tensor:
        deeper = self.deeper if deeper is None else deeper
        self.change(deeper)
        x = self.child(x)
        return self(x, deeper - 1) if deeper else x


@pytest.mark.parametrize("pattern", range(16))
def test_toggling_between_pre_hook_and_hook_keeps_the_balance(pattern: int) -> None:
    to = Listed()

    def change(deeper: int) -> None:
        handle.enabled = bool(pattern >> deeper & 1)

    model = Toggling(3, change)
    handle = layer_markers(model, emitter=to, enabled=bool(pattern & 1))
    for _ in range(2):
        model(torch.randn(1))
        assert to.lane.open == []
    tree(to)


def test_markers_whose_hooks_are_gone_leave_later_ones_on() -> None:
    to, model = Listed(), nn.Linear(4, 4)
    gone = layer_markers(model, emitter=Listed())
    model._forward_pre_hooks.clear()
    model._forward_hooks.clear()
    with layer_markers(model, emitter=to):
        gone.remove()
        model(torch.ones(2, 4))
    assert tree(to) == ["top"]
    assert not hooks(model)


def test_off_says_nothing_and_on_says_it_again() -> None:
    model, to = nn.ReLU(), Listed()
    handle = layer_markers(model, emitter=to, enabled=False)
    model(torch.randn(1))
    assert (to.events, handle.enabled, handle.silent) == ([], False, ["top"])
    handle.enabled = True
    model(torch.randn(1))
    assert tree(to) == ["top"]
    assert handle.silent == []


def test_turning_on_again_sees_new_parameters() -> None:
    model, to = nn.Linear(4, 4), Listed()
    handle = layer_markers(model, emitter=to)
    model(torch.randn(1, 4))
    model.weight = nn.Parameter(torch.randn(6, 4))
    model.bias = None
    handle.enabled = False
    handle.enabled = True
    model(torch.randn(1, 4))
    assert [param.shape for param in by_path(to)["top"].params] == [(6, 4)]


def test_removing_leaves_no_hook_behind_and_may_be_repeated() -> None:
    model, to = Cnn(), Listed()
    handle = layer_markers(model, emitter=to)
    assert hooks(model) == 2 * len(handle.paths)
    handle.remove()
    handle.remove()
    assert hooks(model) == 0
    model(torch.randn(1, 3, 8, 8))
    assert to.events == []


def test_removing_in_the_middle_of_a_call_keeps_the_balance() -> None:
    to = Listed()
    model = Toggling(0, lambda _deeper: handle.remove())
    handle = layer_markers(model, emitter=to)
    model(torch.randn(1))
    assert tree(to) == ["top"]


def test_removing_while_another_thread_is_in_a_call_lets_that_call_end() -> None:
    to, inside, removed = Listed(), threading.Event(), threading.Event()

    def wait(_deeper: int) -> None:
        inside.set()
        removed.wait(20)

    model = Toggling(0, wait)
    handle = layer_markers(model, emitter=to)
    other = threading.Thread(target=model, args=(torch.randn(1),))
    other.start()
    assert inside.wait(20)
    handle.remove()
    removed.set()
    other.join()
    assert tree(to, other.ident) == ["top"]
    assert hooks(model) == 0


def test_threads_have_ranges_of_their_own() -> None:
    model, to = Encoder(), Listed()
    ids = torch.arange(4).view(1, 4)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            model(ids)

    with layer_markers(model, emitter=to):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = [tree(to, thread.ident) for thread in threads]
    assert lines[0] == tree(run(model, ids)) * 20
    assert all(line == lines[0] for line in lines)


def test_marking_twice_marks_once_and_the_first_handle_keeps_the_marks() -> None:
    model, to = Tagger(), Listed()
    with layer_markers(model, emitter=to):
        with layer_markers(model, prefix="again", emitter=to) as second:
            model(torch.randn(1, 2, 6))
            assert second.paths == []
        model(torch.randn(1, 2, 6))
    assert counted(to) == {"top": 2, "top.lstm": 2, "top.out": 2}
    assert hooks(model) == 0


def test_two_emitters_hear_the_same_without_knowing_each_other() -> None:
    model, one, two = Tagger(), Listed(), Listed()
    with layer_markers(model, emitter=one), layer_markers(model, emitter=two):
        model(torch.randn(1, 2, 6))
    assert tree(one) == tree(two) == ["top", "  top.lstm", "  top.out"]


def test_a_copy_of_a_marked_model_is_not_marked() -> None:
    model, to = Tagger(), Listed()
    with layer_markers(model, emitter=to, backward=True):
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            twin(torch.randn(1, 2, 6)).sum().backward()
            assert to.events == []
            with layer_markers(twin, emitter=to):
                twin(torch.randn(1, 2, 6))
            assert tree(to) == ["top", "  top.lstm", "  top.out"]
            to.events.clear()


def test_a_text_is_made_once_for_a_module_and_the_shapes_it_sees() -> None:
    made: list[str] = []

    class Counting(Listed):
        def opener(self, text: str, /):
            made.append(text)
            return super().opener(text)

    model = nn.Sequential(nn.Linear(4, 4))
    with layer_markers(model, emitter=Counting()):
        for rows in (1, 2, 1, 2, 1):
            model(torch.randn(rows, 4))
    assert len(made) == len(set(made)) == 8


def test_gradients_and_results_are_those_of_the_bare_model() -> None:
    torch.manual_seed(0)
    model, x = Tagger(), torch.randn(2, 3, 6, requires_grad=True)
    bare = torch.autograd.grad(model(x).sum(), x)[0]
    with layer_markers(model, emitter=Listed()):
        assert torch.equal(torch.autograd.grad(model(x).sum(), x)[0], bare)


def test_a_lazy_module_tells_the_parameters_that_it_came_to_have() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    assert [param.shape for param in by_path(run(model, torch.randn(1, 5)))["top.0"].params] == [
        (3, 5),
        (3,),
    ]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_modules_in_torchscript_are_left_alone_and_named() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2)))
    traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2))
    model, to = nn.Sequential(scripted, traced, nn.ReLU()), Listed()
    with layer_markers(model, emitter=to) as handle:
        model(torch.zeros(1, 4))
        assert {"top.0", "top.0.0", "top.1.0"} <= set(handle.silent)
    assert [line for line in tree(to) if "top.1" not in line] == ["top", "  top.2"]
    assert {marker.cause for marker in markers(to)} == {None}


@pytest.mark.parametrize("train", [True, False])
def test_torch_s_own_transformer_is_marked_whether_or_not_it_has_a_fast_path(train: bool) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(train)
    counts = counted(run(model, torch.randn(2, 3, 8)))
    assert counts["top.self_attn"] == counts["top.linear1"] == counts["top.norm2"] == 1


def test_a_call_marked_by_hand_tells_what_it_was_given_and_what_it_returned() -> None:
    module, to = nn.Linear(4, 2), Listed()
    x = torch.randn(3, 4)
    for _ in range(2):
        with layer_marker("top.head", module, (x,), {"scale": x}, emitter=to) as call:
            call.result = module(x)
    assert tree(to) == ["top.head"] * 2
    said = by_path(to)["top.head"]
    assert (said.inputs, said.kwargs) == (((3, 4),), {"scale": ((3, 4),)})
    assert by_path(to, result=True)["top.head"].outputs == ((3, 2),)


def test_a_call_marked_by_hand_that_raises_is_closed_and_has_no_result() -> None:
    to = Listed()
    with (
        pytest.raises(ValueError, match="no"),
        layer_marker("top.head", nn.ReLU(), torch.randn(2), emitter=to),
    ):
        raise ValueError("no")
    assert [marker.only_result for marker in markers(to)] == [False]
    assert tree(to) == ["top.head"]


def test_the_result_of_a_compiled_region_marked_by_hand_is_named_as_vllm_does() -> None:
    to = Listed()
    with layer_marker("Torch Compiled Module (input):Llama", nn.ReLU(), emitter=to) as call:
        call.result = torch.randn(2)
    assert [(marker.path, marker.only_result) for marker in markers(to)] == [
        ("Llama", False),
        ("Llama", True),
    ]


def test_steps_and_models_share_one_stack() -> None:
    model, to = nn.ReLU(), Listed()
    with layer_markers(model, emitter=to), step("train", kind="train", emitter=to):
        model(torch.randn(1))
    assert tree(to) == ["train", "  top"]


def test_a_run_in_which_nothing_was_marked_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with layer_markers(nn.ReLU(), emitter=Listed()):
        pass
    assert "no call of 'top' or the modules below it was marked (1 modules)" in caplog.text


def test_the_readme_s_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.TransformerEncoderLayer(4, 2, 4)
    exec(block("markers", ROOT / "tracekit/capture/README.md"), {"model": model, "batches": [torch.zeros(2, 3, 4)] * 2})
    assert capsys.readouterr().out == "['top.self_attn.out_proj']\n"
