"""Whose each node of a backward pass is, by hooks of this test's own and autograd's sequence numbers."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr

import tracekit
from tests.capture import places
from tests.capture.recordings import parsed, recorded
from tests.capture.training_models import SIZE, TRAINED, Mlp, Residual, Tapped, numbers
from tracekit.capture import Listed, layer_markers
from tracekit.capture.layers import SKIPPED
from tracekit.capture.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd
    from torch import Tensor
    from torch.autograd.graph import Node

    from tests.capture.places import Place

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


class Truth:
    """The innermost call in which each sequence number was given, as the hooks of this class see it."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[tuple[int, int, int, str]] = []
        self.open: list[tuple[str, int]] = []
        for name, module in model.named_modules(prefix="top"):
            if not isinstance(module, SKIPPED):
                module.register_forward_pre_hook(lambda *_, name=name: self.open.append((name, _get_sequence_nr())))
                module.register_forward_hook(lambda *_, name=name: self.close(name), always_call=True)

    def close(self, name: str) -> None:
        path, first = self.open.pop()
        assert path == name
        self.calls.append((len(self.open), first, _get_sequence_nr(), path))

    def owner(self, number: int) -> str | None:
        around = [call for call in self.calls if call[1] <= number < call[2]]
        return max(around)[3] if around else None


def nodes_below(loss: Tensor) -> list[Node]:
    """All nodes but those that accumulate gradients: their number is none."""
    seen: dict[Node, None] = {}
    pending = [loss.grad_fn]
    while pending:
        if (node := pending.pop()) is not None and node not in seen:
            seen[node] = None
            pending += [below for below, _ in node.next_functions]
    return [node for node in seen if node._sequence_nr() < 2**63]


def open_path(to: Listed) -> str | None:
    """The module of the innermost range on this thread, which must be one of a backward pass."""
    ranges: list[str] = []
    for event in to.events:
        if event.thread == threading.get_ident():
            ranges = [*ranges, event.text] if event.text is not None else ranges[:-1]
    if not ranges:
        return None
    marker = json.loads(ranges[-1])
    assert marker["Phase"] == "backward"
    return marker["Module"]


def differences(losses: list[Tensor], to: Listed, owner: Callable[[int], str | None]) -> list[tuple]:
    """Runs every loss backward. Returns the nodes that ran in the range of another module than their own."""
    wrong, ran = [], 0

    def compare(node: Node) -> None:
        nonlocal ran
        ran += 1
        own, path = owner(node._sequence_nr()), open_path(to)
        if own != path:
            wrong.append((node.name(), own, path))

    for loss in losses:
        handles = [node.register_prehook(lambda _, node=node: compare(node)) for node in nodes_below(loss)]
        loss.backward(retain_graph=len(losses) > 1)
        for handle in handles:
            handle.remove()
    assert ran
    return wrong


@pytest.mark.parametrize("name", TRAINED)
def test_every_node_runs_in_the_range_of_the_module_whose_forward_made_it(name: str) -> None:
    make, run = TRAINED[name]
    model, to = make(), Listed()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        for _ in range(2):
            assert differences(run(model), to, truth.owner) == []
    assert to.lane.open == []


def test_only_the_nodes_that_lead_to_some_inputs_run() -> None:
    model, to = Tapped(), Listed()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        loss = (model(numbers()) * model.inner).sum()
        wrong = []
        for node in nodes_below(loss):
            node.register_prehook(
                lambda _, node=node: (
                    wrong.append(node.name()) if truth.owner(node._sequence_nr()) != open_path(to) else None
                )
            )
        torch.autograd.grad(loss, [model.second.up.weight])
    assert wrong == []


def test_nodes_of_another_thread_are_never_those_of_a_module_with_the_same_numbers() -> None:
    model, to = nn.ModuleDict({"here": Residual(), "there": Residual()}), Listed()
    outputs: dict[str, Tensor] = {}
    # Both threads count from the same number, nearly.
    with layer_markers(model, emitter=to, backward=True):
        for name in ("here", "there"):
            thread = threading.Thread(target=lambda name=name: outputs.update({name: model[name](numbers())}))
            thread.start()
            thread.join()
        aside = (outputs["here"] * 2 + outputs["there"] * 3).sum()
        paths: dict[str, set[str | None]] = {"here": set(), "there": set(), "loss": set()}
        for name in ("here", "there"):
            for node in nodes_below(outputs[name].sum())[1:]:
                node.register_prehook(lambda _, name=name: paths[name].add(open_path(to)))
        assert aside.grad_fn is not None
        aside.grad_fn.register_prehook(lambda _: paths["loss"].add(open_path(to)))
        aside.backward()
    assert paths["loss"] == {None}
    for name in ("here", "there"):
        assert {path.split(".")[1] for path in paths[name] if path} == {name}


def test_what_is_differentiated_twice_is_still_the_module_s() -> None:
    model, to = nn.Sequential(Mlp(), Mlp()), Listed()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        x = numbers().requires_grad_()
        made: dict[int, str | None] = {}
        output = model(x).sum()
        for node in nodes_below(output):
            path, start = truth.owner(node._sequence_nr()), []
            node.register_prehook(lambda _, start=start: start.append(_get_sequence_nr()))
            node.register_hook(
                lambda *_, start=start, path=path: made.update(
                    dict.fromkeys(range(start[-1], _get_sequence_nr()), path)
                )
            )
        (gradient,) = torch.autograd.grad(output, x, create_graph=True)
        own = lambda number: made.get(number, truth.owner(number))  # noqa: E731
        wrong = differences([gradient.square().sum()], to, own)
    # Gradients of one tensor from several users are added between nodes.
    assert {name for name, *_ in wrong} <= {"AddBackward0"}


def test_a_pass_inside_a_forward_leaves_the_forward_as_it_was() -> None:
    class Refined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy, self.last = Mlp(), nn.Linear(SIZE, SIZE)

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (step,) = torch.autograd.grad(self.energy(x).sum(), x)
            return self.last((x - step).tanh()).sin()

    model, to = Refined(), Listed()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        assert differences([model(numbers()).sum()], to, truth.owner) == []
    assert to.lane.open == []


def test_gradients_stay_the_same() -> None:
    model, x = Residual().eval(), numbers()
    model(x).sum().backward()
    expected = [item.grad.clone() for item in model.parameters()]
    model.zero_grad()
    with layer_markers(model, emitter=Listed(), backward=True):
        model(x).sum().backward()
    assert all(torch.equal(item.grad, other) for item, other in zip(model.parameters(), expected, strict=True))


def test_torch_s_engine_is_back_when_the_markers_are_off() -> None:
    engine = torch.autograd.Variable._execution_engine
    markers = layer_markers(Mlp(), emitter=Listed(), backward=True)
    assert torch.autograd.Variable._execution_engine is not engine
    markers.remove()
    assert type(torch.autograd.Variable._execution_engine) is type(engine)


def test_operators_of_a_backward_pass_belong_to_the_module_of_their_sequence_number_s_forward(
    place: Place,
) -> None:
    make = "from tests.capture.training_models import SharedBias, numbers\ndef make(): return SharedBias(), numbers()"
    place.write(make)
    outcome = place.capture("--backward", "--ops", "--steps", 2, "model.py:make")
    assert outcome.code == 0, outcome
    dataset = tracekit.parse(place.folder / "make.sqlite")
    ranges = dataset.ranges(["text", "start_ns", "end_ns"])
    words = ranges.text.astype(str).str.extract(r"(?P<name>.+?), seq = (?P<number>\d+), op_id").dropna()
    work = dataset.kernels(["name", "module", "start_ns", "end_ns"]).astype({"name": str})
    work = work.merge(ranges.join(words, how="inner"), on=["name", "start_ns", "end_ns"]).sort_values("start_ns")
    backward = work.name.str.contains("Backward")
    # The last operator with a number made the node; those before it made none.
    made_by = work[~backward].drop_duplicates("number", keep="last").set_index("number").module
    own = work[backward].number.map(made_by.astype(object))
    assert own.notna().sum() > 200
    assert (own.fillna("") == work[backward].module.astype(object).fillna("")).all()


def test_ranges_need_not_nest_while_torch_pushes_ranges_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Listed):
        def __init__(self) -> None:
            super().__init__()
            self.running: list[str] = []

        def start(self, text: str) -> Callable[[], object]:
            self.running.append(json.loads(text)["Module"])
            return self.running.pop

    monkeypatch.setattr("tracekit.capture.backward._operators_push_ranges", lambda: True)
    model, to, found = Mlp(), Started(), set()
    truth = Truth(model)
    with layer_markers(model, emitter=to, backward=True):
        loss = model(numbers()).sum()
        to.events.clear()
        for node in nodes_below(loss):
            owner = truth.owner(node._sequence_nr())
            node.register_prehook(lambda _, owner=owner: found.add((owner, *to.running[-1:])))
        loss.backward()
    assert found == {(None,), ("top", "top"), ("top.up", "top.up"), ("top.down", "top.down")}
    assert not to.events
    assert not to.running


def test_threads_that_train_at_once_do_not_disturb_each_other() -> None:
    model, to, wrong = Residual(), Listed(), []

    def train() -> None:
        for _ in range(3):
            output = model(numbers())
            for node in nodes_below(output.sum())[1:]:
                node.register_prehook(lambda _: wrong.append(open_path(to)) if open_path(to) is None else None)
            output.sum().backward()

    with layer_markers(model, emitter=to, backward=True):
        model(numbers()).sum().backward()
        threads = [threading.Thread(target=train) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert {event.text is None for event in to.events} == {True, False}
    for thread in threads:
        own = [event.text for event in to.events if event.thread == thread.ident]
        assert sum(text is None for text in own) * 2 == len(own)


def work_of_training(name: str, folder: Path, *, backward: bool) -> pd.DataFrame:
    """All operators of two steps in the order of time."""
    make, run = TRAINED[name]
    torch.manual_seed(1)
    model, recorder = make(), Recorder(ops=True)
    with recorded(recorder), layer_markers(model, backward=backward):
        for loss in (losses := [*run(model), *run(model)]):
            loss.backward(retain_graph=len(losses) > 2)
    work = parsed(recorder, folder).kernels(["name", "module", "method", "phase", "start_ns"])
    return work.sort_values("start_ns", kind="stable").astype(object).reset_index(drop=True)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("residual", set()),
        ("several passes", set()),
        ("penalized", set()),
        # A node inside which modules run again, and the nodes of views that were made anew at the end of a module.
        ("checkpointed", {"TanhBackward0"}),
        ("checkpointed reentrant", {"CheckpointFunctionBackward"}),
        ("own function", {"AsStridedBackward0"}),
    ],
)
def test_sequence_numbers_tell_the_modules_that_markers_of_the_backward_pass_tell(
    name: str, unknown: set[str], tmp_path: Path
) -> None:
    marked, numbered = (work_of_training(name, tmp_path, backward=backward) for backward in (True, False))
    assert marked.name.tolist() == numbered.name.tolist()
    known = numbered.module.notna()
    assert (numbered.module[known] == marked.module[known]).all()
    assert set(numbered.phase[numbered.method == "backward"]) == {"backward"}
    nodes = numbered[numbered.name.str.fullmatch(r"\w+Backward\d*") & marked.module.notna()]
    assert set(nodes.name[nodes.module.isna()]) == unknown
    assert (nodes.method == "backward").sum() > 20
