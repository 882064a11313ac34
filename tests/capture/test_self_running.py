"""Programs that run their steps themselves: what is a root, what is a step, what lies in the window."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.capture import places
from tests.capture.places import last_line, one_line
from tests.command import separately
from tracekit.analyses.phase_times import COLUMNS, phase_times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.places import Place
    from tracekit.dataset.opening import Dataset

pytestmark = pytest.mark.torch

TOP = """
import torch
from torch import nn
from tracekit.capture import step

class Net(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, size), nn.ReLU())
        self.head = nn.Linear(size, 2)
    def forward(self, x, scale=None):
        return self.head(self.encoder(x))

x = torch.zeros(2, 4)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


def captured(place: Place, body: str, *args: object) -> Dataset:
    """Records ``main`` with this body."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    place.write(f"{TOP}\ndef main():\n{lines}")
    outcome = place.capture("--force", *args, "model.py:main")
    assert outcome.code == 0, outcome
    return tracekit.parse(place.folder / "main.sqlite", force=True)


def counts(dataset: Dataset) -> dict[str, int]:
    found = dataset.calls(["module"])
    return found.groupby(found.module.astype(str)).size().to_dict()


def test_everything_is_recorded_unless_it_is_said_otherwise(place: Place) -> None:
    dataset = captured(place, "net = Net()\nfor _ in range(3): net(x)")
    assert counts(dataset) == dict.fromkeys(("Net", "Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head"), 3)
    assert len(dataset.steps()) == 3


def test_iterations_are_the_calls_of_the_first_root(place: Place) -> None:
    body = "net, other = Net(), nn.Tanh()\nfor _ in range(6): net(x), other(x), other(x)"
    dataset = captured(place, body, "--warmup", 2, "--steps", 3)
    assert counts(dataset)["Net"] == 3
    assert counts(dataset)["Tanh"] == 6
    assert dataset.calls().module.tolist()[0] == "Net"


def test_iterations_are_steps_where_there_are_some(place: Place) -> None:
    body = """
net = Net()
net(x)
for at in range(5):
    with step("both", batch_size=at):
        net(x)
        net(x)
"""
    dataset = captured(place, body, "--warmup", 1, "--steps", 2)
    assert dataset.steps(["batch_size"]).batch_size.tolist() == [1, 2]
    assert counts(dataset)["Net"] == 4


def test_markers_after_the_last_step_are_not_called_lost(place: Place) -> None:
    captured(place, "net = Net()\nfor _ in range(6): net(x)", "--steps", 1)
    with closing(sqlite3.connect(place.folder / "main.sqlite")) as db:
        figures = dict(db.execute("SELECT name, value FROM TRACEKIT_RECORDER"))
    assert figures["markers_lost"] == 0


def test_the_first_call_of_a_root_says_as_much_as_the_later_ones(place: Place) -> None:
    body = "net = Net()\nfor _ in range(2): net(x, scale=torch.ones(3))"
    rows = captured(place, body).table("calls", ["module", "inputs", "outputs", "kwargs"])
    first, second = (row for row in rows.to_pylist() if row["module"] == "Net")
    assert first == second
    assert first["inputs"] == [[2, 4]]
    assert first["kwargs"] == [("scale", [[3]])]


def test_a_root_is_marked_whatever_mode_it_is_first_called_in(place: Place) -> None:
    body = """
net = Net()
with torch.no_grad(): net(x)
with torch.inference_mode(): net(x)
net(x).sum().backward()
"""
    assert counts(captured(place, body))["Net.head"] == 3


def test_roots_of_one_class_are_told_apart(place: Place) -> None:
    found = counts(captured(place, "for size in (4, 4):\n    net = Net(size)\n    net(x)\n    net(x)"))
    assert (found["Net"], found["Net_2"]) == (2, 2)


def test_a_part_that_is_called_before_the_whole_has_one_marker_for_each_call(place: Place) -> None:
    dataset = captured(place, "net = Net()\nnet.encoder(x)\nnet(x)\nnet.encoder(x)")
    found = dataset.calls(["module"]).module.astype(str)
    assert found.str.endswith(".0").sum() == 3
    assert found.str.endswith("head").sum() == 1
    ranges = dataset.ranges(["text"]).text
    assert ranges.str.contains("Inputs").sum() == 3 * 3 + 2


def test_a_module_that_is_made_after_its_root_was_marked_is_no_root_of_its_own(
    place: Place,
) -> None:
    body = "net = Net()\nnet(x)\nnet.head = nn.Linear(4, 2)\nnet(x)"
    found = counts(captured(place, body))
    assert found["Net"] == 2
    assert not [name for name in found if name.startswith("Linear")]


def test_a_factory_may_run_its_model_before_it_returns_it(place: Place) -> None:
    dataset = captured(place, "net = Net()\nnet(x)\nreturn net, x", "--steps", 2, "--warmup", 1)
    assert counts(dataset) == dict.fromkeys(("Net", "Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head"), 2)
    assert len(dataset.steps()) == 2


def test_a_program_that_raises_in_a_later_step_leaves_the_steps_before(place: Place) -> None:
    place.write(TOP + "\ndef main():\n    net = Net()\n    net(x)\n    net(torch.zeros(1, 3))\n")
    said = last_line(place.capture("model.py:main"))
    assert "raised RuntimeError" in said
    dataset = tracekit.parse(place.folder / "main.sqlite")
    assert not dataset.ranges(["open"]).open.any()
    assert counts(dataset)["Net"] == 2


@pytest.mark.parametrize(
    ("body", "args", "said"),
    [
        ("pass", (), "called no module, so nothing was recorded; expected (model, inputs), or None from a function"),
        ("net = Net()\n    net(x)\n    net(x)", ("--warmup", 2), "ended after 2 of 2 warm-up steps, so nothing was"),
    ],
)
def test_a_program_of_which_nothing_was_recorded_is_told_why(
    place: Place, body: str, args: tuple[object, ...], said: str
) -> None:
    place.write(f"{TOP}\ndef main():\n    {body}\n")
    assert said in one_line(place.capture(*args, "model.py:main"))
    assert place.left() == {"model.py"}


def test_a_script_whose_other_processes_run_the_models_is_told_how_to_record_them(place: Place) -> None:
    place.write("import multiprocessing\n")
    advice = "so nothing was recorded; processes that it starts are recorded with: tracekit capture -- python model.py"
    assert advice in one_line(place.capture("model.py"))


def test_a_script_sees_its_arguments_and_is_main(place: Place) -> None:
    place.write(
        f"{TOP}\nimport sys\nfrom beside import TIMES\nif __name__ == '__main__':\n"
        "    net = Net()\n    print(sys.argv, __file__)\n    for _ in range(TIMES): net(x)\n",
        "sub/train.py",
    )
    place.write("TIMES = 2\n", "sub/beside.py")
    outcome = place.capture("--steps", 1, "sub/train.py", "--", "--steps", "8", "--")
    assert outcome.code == 0, outcome
    assert outcome.out == "['sub/train.py', '--steps', '8', '--'] sub/train.py\n"
    assert counts(tracekit.parse(place.folder / "train.sqlite"))["Net"] == 1


def test_a_compiled_model_has_its_range_and_runs_as_it_would(place: Place) -> None:
    body = """
fast = torch.compile(Net(), backend="eager", fullgraph=True)
for _ in range(3):
    with step("one"):
        fast(x)
"""
    dataset = captured(place, body)
    calls = dataset.calls(["module", "step_id"])
    assert calls.values.tolist() == [["Net", 0], ["Net", 1], ["Net", 2]]


def test_models_compiled_in_place_before_their_first_call_have_their_ranges_and_steps(place: Place) -> None:
    program = """
early, late = Net(), Net()
early.compile(backend="eager", fullgraph=True)

def main():
    late.compile(backend="eager", fullgraph=True)
    for _ in range(4):
        late(x)
        early(x, scale=x)
"""
    place.write(TOP + program)
    outcome = place.capture("--warmup", 1, "--steps", 2, "model.py:main")
    assert "recorded 2 modules; not marked: 8 inside compiled code" in outcome.err, outcome
    assert counts(tracekit.parse(place.folder / "main.sqlite")) == {"Net": 2, "Net_2": 2}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("args", "expected"), [(("--backward",), [5, 2]), (("--warmup", 1, "--steps", 3), [3, 1])])
def test_a_model_that_is_compiled_in_place_between_its_calls_keeps_its_ranges(
    place: Place, args: tuple[object, ...], expected: list[int]
) -> None:
    body = """
net = Net()
loss = net(x).sum()
net.head.compile(backend="aot_eager")
loss = loss + net(x).sum()
net.compile(backend="aot_eager")
loss = loss + net(x).sum()
net.compile(backend="aot_eager", fullgraph=True)
for _ in range(2): loss = loss + net(x).sum()
loss.backward()
"""
    dataset = captured(place, body, *args)
    calls = dataset.calls(["module", "phase"])
    forward = calls[calls.phase == "forward"]
    outside, inside = expected
    assert forward.module.astype(str).value_counts().to_dict() == {
        "Net": outside,
        **dict.fromkeys(("Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head"), inside),
    }
    assert len(dataset.steps()) == outside


def test_a_command_that_compiles_its_model_in_place_is_recorded(place: Place) -> None:
    place.write(f"{TOP}\nnet = Net()\nnet.compile(backend='eager')\nnet(x)\n")
    outcome = separately(
        "capture", "--engine", "torch", "-o", "run", "--", sys.executable, "model.py", cwd=place.folder
    )
    assert "recorded 1 modules; not marked: 4 inside compiled code" in outcome.err, outcome


def test_workers_of_a_data_loader_do_not_disturb_the_recording(place: Place) -> None:
    body = """
from torch.utils.data import DataLoader, TensorDataset
net = Net()
data = TensorDataset(torch.zeros(8, 4))
for (batch,) in DataLoader(data, batch_size=2, num_workers=1):
    net(batch)
"""
    dataset = captured(place, body)
    assert counts(dataset)["Net"] == 4
    assert set(dataset.calls().pid) == set(dataset.kernels().pid)


def test_markers_that_the_program_puts_on_itself_are_recorded_once(place: Place) -> None:
    body = """
from tracekit.capture import layer_markers
net = Net()
with layer_markers(net, "own"):
    net(x)
    net(x)
"""
    found = counts(captured(place, body))
    assert sum(count for name, count in found.items() if name.endswith("head")) == 2


def test_calls_that_train_have_backward_markers_if_they_are_wanted(place: Place) -> None:
    body = "net = Net()\nfor _ in range(2): net(x).sum().backward()"
    calls = captured(place, body, "--backward").calls()
    assert set(calls.phase) == {"forward", "backward"}
    assert (calls[calls.module == "Net.head"].phase == "backward").sum() == 2


def test_operators_are_marked_if_they_are_wanted(place: Place) -> None:
    dataset = captured(place, "net = Net()\nnet(x)", "--ops")
    texts = dataset.ranges(["text"]).text
    assert texts.str.contains(r"^aten::addmm, (?:seq = \d+, )?op_id = \d+, sizes = \[\[2\], ").any()
    assert counts(dataset)["Net"] == 1


def test_a_program_that_profiles_itself_is_told_and_nothing_crashes(place: Place) -> None:
    place.write(
        TOP + "from torch.profiler import ProfilerActivity, profile\n"
        "def main():\n    net = Net()\n    net(x)\n"
        "    with profile(activities=[ProfilerActivity.CPU]): net(x)\n    net(x)\n"
    )
    outcome = separately("capture", "--engine", "torch", "model.py:main", cwd=place.folder)
    assert outcome.code == 1, outcome
    assert outcome.err.splitlines()[-1].startswith("tracekit: ")
    assert "torch.profiler itself" in outcome.err
    assert place.left() == {"model.py"}


def test_a_program_that_goes_elsewhere_leaves_its_report_here(place: Place) -> None:
    (place.folder / "elsewhere").mkdir()
    dataset = captured(place, "import os\nos.chdir('elsewhere')\nNet()(x)\nos.chdir('..')")
    assert counts(dataset)["Net"] == 1
    place.write(TOP + "import os\ndef main():\n    os.chdir('elsewhere')\n    Net()(x)\n")
    assert place.capture("-o", "there", "model.py:main").code == 0
    assert (place.folder / "there.sqlite").exists()


def test_a_fork_of_the_program_writes_no_report_of_its_own(place: Place) -> None:
    place.write(
        TOP + "import os, sys\ndef main():\n    net = Net()\n    net(x)\n"
        "    if os.fork() == 0:\n        print('child', flush=True)\n        sys.exit(3)\n"
        "    print(os.waitstatus_to_exitcode(os.wait()[1]))\n    net(x)\n"
    )
    outcome = separately("capture", "--engine", "torch", "model.py:main", cwd=place.folder)
    assert outcome.code == 0, outcome
    assert outcome.out == "child\n3\n"
    assert outcome.err.count("report: ") == 1
    assert counts(tracekit.parse(place.folder / "main.sqlite"))["Net"] == 2


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

class Deep(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Net() for _ in range(2)])
        for layer in self.layers:
            layer.head = nn.Linear(4, 4)
        self.reentrant = reentrant
    def forward(self, x):
        x = self.embed(x).sin()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant).tanh()
        return x
"""


def phases(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Number of calls by module and phase."""
    found = dataset.calls(["module", "phase"])
    calls = found.groupby([found.module.astype(str), found.phase.astype(str)]).size()
    return {module: calls[module].to_dict() for module in calls.index.get_level_values(0)}


def test_the_first_backward_pass_of_a_root_is_marked_too(place: Place) -> None:
    dataset = captured(place, "net = Net()\nfor _ in range(4): net(x).sum().backward()", "--backward")
    modules = ("Net", "Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head")
    assert phases(dataset) == {module: {"forward": 4, "backward": 4} for module in modules}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_layers_that_run_again_are_told_apart(place: Place, reentrant: bool, backward: bool) -> None:
    place.write(f"{TOP}{CHECKPOINTED}", "deep.py")
    body = f"from deep import Deep\nnet = Deep({reentrant})\nfor _ in range(3): net(x).sum().backward()"
    dataset = captured(place, body, *(["--backward"] if backward else []))
    once = {"forward": 3} | ({"backward": 3} if backward else {})
    layers = [f"Deep.layers.{layer}{part}" for layer in (0, 1) for part in ("", ".encoder", ".encoder.0", ".head")]
    found = phases(dataset)
    assert {name: found[name] for name in ("Deep", "Deep.embed")} == dict.fromkeys(("Deep", "Deep.embed"), once)
    assert {name: found[name] for name in layers} == dict.fromkeys(layers, once | {"recompute": 3})
    assert len(dataset.steps()) == 3
    calls = dataset.calls(["phase", "parent_call_id", "call_id"]).set_index("call_id")
    above = calls.parent_call_id.dropna().map(calls.phase)
    assert (above == calls.phase[above.index]).all()
    # The times of phases are those of calls in them.
    work = dataset.kernels(["module", "call_id", "dur_ns"]).dropna(subset="call_id")
    by_call = work.dur_ns.groupby([work.module.astype(str), work.call_id.map(calls.phase).astype(str)]).sum()
    times = phase_times(dataset).own
    told = {
        (path, name.removesuffix("_ns")): int(times[name][row])
        for row, path in enumerate(dataset.modules().path)
        for name in COLUMNS
        if times[name][row]
    }
    assert told == by_call[by_call > 0].to_dict()
