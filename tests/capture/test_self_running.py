"""Programs that run their steps themselves: what is a root, what is a step, what lies in the window."""

import sys
import time
from collections import Counter
from unittest.mock import Mock

import pytest
import torch

import tracekit
from tests.capture.places import Place, last_line, one_line
from tests.command import separately
from tracekit.capture import recorder
from tracekit.capture.engines import torch_profiler
from tracekit.capture.program import Settings
from tracekit.capture.run import Job
from tracekit.dataset.opening import Dataset
from tracekit.progress import Progress

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
ONE_CALL = f"{TOP}\ndef main():\n    Net()(x)\n"


def captured(place: Place, body: str, *args: object) -> Dataset:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    place.write(f"{TOP}\ndef main():\n{lines}")
    outcome = place.capture("--force", *args, "model.py:main")
    assert outcome.code == 0, outcome
    assert "lost" not in outcome.err, outcome
    return tracekit.parse(place.folder / "main.sqlite", force=True)


def counts(dataset: Dataset) -> Counter[str]:
    return Counter(dataset.calls(["module"]).module)


#: Programs, each with the options of its recording and how often some of its modules are called in it.
COUNTED = {
    "iterations are cycles of calls": (
        "net, other = Net(), nn.Tanh()\nfor _ in range(6): net(x), net(x), other(x), other(x)",
        ("--warmup", 2, "--steps", 3),
        {"Net": 6, "Tanh": 6},
    ),
    "roots of one class are told apart": (
        "for size in (4, 4):\n    net = Net(size)\n    net(x)\n    net(x)",
        (),
        {"Net": 2, "Net_2": 2},
    ),
    "a model that the program drops is freed, and the next one leads": (
        "import gc, weakref\nfor _ in range(2):\n    net = Net()\n    net(x)\n    gone = weakref.ref(net)\n"
        "    del net\n    gc.collect()\n    assert gone() is None",
        ("--warmup", 1, "--steps", 1),
        {"Net": None, "Net_2": 1},
    ),
    "after the last step to record, markers are off": (
        "from tracekit.capture.attach import marks_on\nnet, on = Net(), []\nfor _ in range(3):\n"
        "    on.append([marks.switch.on for marks in marks_on(net)])\n    net(x)\n"
        "assert on == [[], [True], [True]], on\nassert not any(marks.switch.on for marks in marks_on(net))",
        ("--steps", 2),
        {"Net": 2},
    ),
}


@pytest.mark.parametrize("program", COUNTED)
def test_calls_in_the_window_are_counted(program: str, place: Place) -> None:
    body, args, expected = COUNTED[program]
    dataset = captured(place, body, *args)
    assert expected.items() <= {**dict.fromkeys(expected), **counts(dataset)}.items()
    if program.startswith("iterations"):  # the dataset has the same steps
        assert len(dataset.steps()) == 3
        assert dataset.calls().module.tolist()[0] == "Net"


def test_iterations_are_steps_where_there_are_some(place: Place) -> None:
    body = "net = Net()\nnet(x)\nfor at in range(5):\n    with step('both', batch_size=at): net(x), net(x)"
    dataset = captured(place, body, "--warmup", 1, "--steps", 2)
    assert dataset.steps(["batch_size"]).batch_size.tolist() == [1, 2]
    assert counts(dataset)["Net"] == 4


def test_the_first_call_of_a_root_says_as_much_as_the_later_ones(place: Place) -> None:
    body = "net = Net()\nfor _ in range(2): net(x, scale=torch.ones(3))"
    rows = captured(place, body).table("calls", ["module", "inputs", "outputs", "kwargs"])
    first, second = (row for row in rows.to_pylist() if row["module"] == "Net")
    assert first == second
    assert (first["inputs"], first["kwargs"]) == ([[2, 4]], [("scale", [[3]])])


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


TRAINING = """
net = Net()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(3): net(x).sum().backward(), optimizer.step()
"""


@pytest.mark.parametrize(("args", "expected"), [((), 3), (("--no-backward",), 0), (("--backward", "--steps", 1), 1)])
def test_backward_passes_of_a_program_that_trains_are_marked(place: Place, args: tuple, expected: int) -> None:
    calls = captured(place, TRAINING, *args).calls(["module", "phase"])
    assert ((calls.module == "Net.head") & (calls.phase == "backward")).sum() == expected


def test_first_calls_on_other_threads_wait_until_the_profiler_has_started(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = recorder._start
    monkeypatch.setattr(recorder, "_start", lambda profiler: (time.sleep(0.3), start(profiler)))
    body = """
from threading import Thread
threads = [Thread(target=net, args=(x,)) for net in (Net(), Net()) * 2]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    assert {"Net": 2, "Net.head": 2, "Net_2": 2, "Net_2.head": 2}.items() <= counts(captured(place, body)).items()


def test_a_stop_while_the_profiler_starts_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder.profile, "start", Mock(side_effect=KeyboardInterrupt))
    place.write(ONE_CALL)
    assert "before anything was recorded" in one_line(place.capture("model.py:main"), 130)


def test_a_stop_is_answered_before_the_profiler_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    end = recorder.profile.stop
    monkeypatch.setattr(recorder.profile, "stop", lambda profiler: (sys.stderr.write("ends"), end(profiler)))
    place.write(f"{ONE_CALL}    raise KeyboardInterrupt\n")
    outcome = place.capture("model.py:main")
    assert outcome.code == 130
    assert outcome.err.startswith("tracekit: stopped; writing what was recorded"), outcome
    assert "ends" in outcome.err


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])  # Ctrl-C, and a kill
@pytest.mark.parametrize("during", ["tracekit.capture.recorder.profile.stop", "tracekit.nsight.file._inserted"])
def test_a_stop_while_a_recording_is_written_leaves_what_was_there(
    place: Place, monkeypatch: pytest.MonkeyPatch, during: str, stop: BaseException
) -> None:
    place.write(ONE_CALL)
    (place.folder / "main.sqlite").write_text("mine")
    monkeypatch.setattr(during, Mock(side_effect=stop))
    outcome = place.capture("--force", "model.py:main")
    torch.autograd.profiler._disable_profiler() if during.endswith("stop") else None
    assert "stopped while writing; no report was written" in one_line(outcome, getattr(stop, "code", 130))
    assert place.left() == {"main.sqlite", "model.py"}
    assert (place.folder / "main.sqlite").read_text() == "mine"


def test_writing_says_how_much_and_advances_to_its_end(place: Place) -> None:
    shares: dict[str, list[float]] = {}
    place.write(ONE_CALL)
    places = place.folder / "run.sqlite", place.folder / "run.json.gz"
    heard: Progress = lambda stage, share: shares.setdefault(stage, []).append(share)  # noqa: E731
    torch_profiler.record(Job("model.py:main", (), Settings(), *places, heard))
    exporting, *_ = shares
    assert list(shares) == [exporting, "reading 0 MB of events", "writing the Chrome trace", "writing the report"]
    assert shares[exporting] == [0, 1]
    for each in shares.values():
        assert (each[0], each) == (0, sorted(each))
        assert each[-1] == pytest.approx(1)


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
    parts = dict.fromkeys(("Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head"), inside)
    assert Counter(forward.module) == {"Net": outside, **parts}
    assert len(dataset.steps()) == outside


def test_a_program_that_profiles_itself_is_told_and_nothing_crashes(place: Place) -> None:
    place.write(
        TOP + "from torch.profiler import ProfilerActivity, profile\n"
        "def main():\n    net = Net()\n    net(x)\n"
        "    with profile(activities=[ProfilerActivity.CPU]): net(x)\n    net(x)\n"
    )
    outcome = separately("capture", "--engine", "torch", "model.py:main", cwd=place.folder)
    assert "torch.profiler itself" in last_line(outcome)
    assert place.left() == {"model.py"}


SEVERAL = """
import os, subprocess, sys
CALL = "; torch.nn.Linear(2, 2)(torch.ones(2))"
def main():
    net = Net()
    net(x)
    for called in (False, True):
        if os.fork() == 0:
            net(x) if called else None
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    for line in (f"import torch{CALL}", f"import tracekit.capture, torch{CALL}"):
        subprocess.run([sys.executable, "-c", line], check=True)
    net(x)
"""


def test_other_processes_that_call_modules_are_counted_and_write_no_report(place: Place) -> None:
    place.write(TOP + SEVERAL)
    outcome = separately("capture", "--engine", "torch", "model.py:main", cwd=place.folder)
    assert (outcome.code, outcome.out) == (0, "3\n3\n"), outcome
    warning, *others = outcome.err.splitlines()
    assert warning.startswith("tracekit: warning: 3 processes were not recorded: of this TARGET, only one process")
    assert [line.split(":")[0].split()[0] for line in others] == ["recorded", "modules", "report", "next"], others
    assert counts(tracekit.parse(place.folder / "main.sqlite"))["Net"] == 2
