"""Commands whose processes record themselves: every way to start and to end one, and one report of all."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

import tracekit
from tests.capture.places import Place, one_line, stopped
from tests.command import arguments, environment, separately
from tests.waiting import PATIENCE_S
from tracekit.capture import processes, recorder as profiler
from tracekit.capture.process_files import pieces, unfinished
from tracekit.capture.processes import command as recorder
from tracekit.capture.processes.recording import ProcessWindow, Request
from tracekit.capture.program import Settings
from tracekit.capture.writing import OPENED
from tracekit.dataset.opening import Dataset
from tracekit.nsight import nsys

pytestmark = pytest.mark.torch
STARTUP = Path(processes.__file__).parent / "startup"

#: A model whose calls every process notes for itself, before and after, by the clock of the machine.
NET = """
import importlib.util
assert importlib.util.find_spec("torch")  # as programs ask whether there is one
import json, os, sys, time, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(x)

def work(name, calls, net=None):
    net = net or Net()
    before = time.time_ns()
    for _ in range(calls):
        net(torch.zeros(2, 4))
    with open(f"{name}.truth", "w") as file:
        json.dump([os.getpid(), calls, before, time.time_ns()], file)
"""
PROGRAM = """
import ctypes, multiprocessing, os, subprocess, sys, time
from torch.utils.data import DataLoader
from net import Net, work

def waits(name, calls, sleep, ready):
    work(name, calls)
    ready.set()
    while True:
        sleep(60)

def loads(number):
    work(f"loads_{number}", 3)

def main():
    net = Net()
    fork, spawn, served = (multiprocessing.get_context(name) for name in ("fork", "spawn", "forkserver"))
    batches = list(DataLoader(range(4), num_workers=2, multiprocessing_context="fork", worker_init_fn=loads))
    work("main", len(batches), net)
    ways = ((fork, ("forked", 5, net)), (spawn, ("spawned", 6)), (served, ("served", 4)))
    started = [way.Process(target=work, args=args) for way, args in ways]
    for process in started:
        process.start()
    for process in started:
        process.join()
    # While it sleeps in C, Python's handler of the signal never runs.
    for name, calls, sleep in (("terminated", 2, time.sleep), ("in_c", 3, ctypes.CDLL(None).sleep)):
        ready = fork.Event()
        process = fork.Process(target=waits, args=(name, calls, sleep, ready))
        process.start()
        ready.wait()
        process.terminate()
        process.join(30)
        assert process.exitcode == -15, process.exitcode
    last = "import os; from net import work; work('sub', 7); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", last]).returncode == 9
    print("bye", flush=True)
    sys.exit(4)

if __name__ == "__main__":
    main()
"""


WORKERS = {"main", "forked", "spawned", "served", "loads_0", "loads_1", "terminated", "in_c", "sub"}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("torch", "--", sys.executable, "program.py"), id="a command under torch"),
        pytest.param(("nsys", "program.py"), id="a script under nsys", marks=pytest.mark.nsys),
    ],
)
def test_every_process_is_in_the_report_however_it_starts_and_ends(how: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "program.py").write_text(PROGRAM)
    outcome = separately("capture", "--force", "-o", "run", "--engine", *how, cwd=tmp_path)
    assert (outcome.code, outcome.out) == (4, "bye\n"), outcome
    assert "nsys lost" not in outcome.err, outcome
    left = {path.name for path in tmp_path.iterdir() if path.suffix not in {".truth", ".nsys-rep"}}
    assert left - {"__pycache__"} == {"net.py", "program.py", "run.sqlite"}
    assert " in 9 processes" in outcome.err
    # Two modules of each process; forked ones know those of their parent, too, but do not all call them.
    assert "modules: 18 called, counted in each process\n" in outcome.err
    # Each process noted its id, its calls, and when they began and ended.
    truth = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.truth")}
    assert set(truth) == WORKERS
    calls = root_calls(tracekit.parse(tmp_path / "run.sqlite", force=True))
    assert Counter(calls.pid) == {pid: number for pid, number, *_ in truth.values()}
    # Bounds were noted outside the calls, so on the one clock of all, none may lie on the wrong side of another's.
    first, last = calls.groupby("pid").start_ns.min(), calls.groupby("pid").end_ns.max()
    before, after = zip(*((start - first[pid], end - last[pid]) for pid, _, start, end in truth.values()), strict=True)
    assert max(before) < min(after)


def root_calls(dataset: Dataset) -> pd.DataFrame:
    calls = dataset.calls(["module", "pid", "start_ns", "end_ns"])
    return calls[calls.module.isin(["Net", "Net_2"])]


def calls_by_process(dataset: Dataset) -> Counter[int]:
    return Counter(root_calls(dataset).pid.tolist())


LOSSES = """
import os, signal, subprocess, sys, time
from net import Net, work
net = Net()
work("main", 4, net)

def forked(name, calls):
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        work(name, calls, net)
        os.write(writing, b"1")
        time.sleep(60)
    os.read(reading, 1)
    return pid

for name, calls in (("killed", 2), ("safe", 9)):
    subprocess.run(["kill", "-9", str(forked(name, calls))])
os.kill(forked("killed_by_parent", 2), signal.SIGKILL)
print(forked("outliving", 2), flush=True)
"""


def test_steps_are_safe_once_they_ran_and_what_is_lost_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_OUTLIVE_TIMEOUT_S", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(Path(tracekit.__file__).parents[1]))
    place.write(NET, "net.py")
    place.write(f"import os, sys\nos.dup2(os.open('out', os.O_CREAT | os.O_WRONLY), 1)\n{LOSSES}", "losses.py")
    outcome = place.capture("-o", "run", "--warmup", 1, "--steps", 2, "--", sys.executable, "losses.py")
    outliving = int((place.folder / "out").read_text())
    os.kill(outliving, signal.SIGKILL)
    assert outcome.code == 0, outcome
    truth = {path.stem: json.loads(path.read_text())[0] for path in place.folder.glob("*.truth")}
    calls = {truth["main"]: 2, truth["safe"]: 2, truth["killed_by_parent"]: 1}
    assert calls_by_process(tracekit.parse("run.sqlite")) == calls
    warnings = [line for line in outcome.err.splitlines() if "warning" in line]
    texts = (
        f"process {truth['killed']} was killed or crashed before it wrote",
        f"process {outliving} outlives the command",
    )
    assert [sum(said in line for line in warnings) for said in texts] == [1, 1]
    assert len(warnings) == 2
    assert not [name for name in place.left() if "partial" in name]


CALL = "torch.nn.Linear(2, 2)(torch.ones(2))"
KILLS_ITSELF = f"""
import inspect, os, pickle, signal, torch
{CALL}
for function, signature in ((os.kill, "(pid, signal, /)"), (os._exit, "(status)")):
    assert pickle.loads(pickle.dumps(function)) is function, function
    assert str(inspect.signature(function)) == signature, function
"""
#: Programs that call a module once, each with its exit code; uvicorn sends itself again what it got.
ODD = {
    KILLS_ITSELF + "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    KILLS_ITSELF + "before = signal.signal(signal.SIGTERM, lambda *_: None); os.kill(os.getpid(), signal.SIGTERM); "
    "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.raise_signal(signal.SIGTERM)": -signal.SIGTERM,
    # Marks its model itself, and hears Ctrl-C while it writes at its end.
    "import signal, torch; from tracekit.capture import layer_markers, unheard; model = torch.nn.Linear(2, 2)\n"
    "with layer_markers(model): model(torch.ones(2))\nassert unheard() is None, unheard()\n"
    "write = torch.profiler.profile.export_chrome_trace; torch.profiler.profile.export_chrome_trace = "
    "lambda *given: (signal.raise_signal(signal.SIGINT), write(*given))": 0,
}
#: Runs them, once it has made itself a process group, which no leader of a session can.
LEADER = f"""
import os, subprocess, sys, torch
os.setpgrp(), os.setpgid(0, 0)
{CALL}
codes = [subprocess.run([sys.executable, "-c", program]).returncode for program in {list(ODD)!r}]
assert codes == {list(map(int, ODD.values()))!r}, codes
"""


def test_processes_that_kill_interrupt_or_mark_themselves_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "leader.py").write_text(LEADER)
    outcome = separately("capture", "--engine", "torch", "-o", "run", "--", sys.executable, "leader.py", cwd=tmp_path)
    assert outcome.code == 0, outcome
    calls = Counter(tracekit.parse(tmp_path / "run.sqlite").calls(["pid"]).pid.tolist())
    assert list(calls.values()) == [1] * (1 + len(ODD))
    assert [line.split()[0] for line in outcome.err.splitlines()] == ["recorded", "modules:", "report:", "next:"]


def test_a_kill_reaches_a_command_that_ignores_an_interrupt_and_gets_no_advice_on_paths(tmp_path: Path) -> None:
    program = ("sh", "-c", "trap '' INT; echo .; exec sleep 60")
    outcome = stopped(tmp_path, signal.SIGTERM, "-o", "run", "--engine", "torch", "--", *program)
    assert outcome.code == 128 + signal.SIGTERM
    first, *others = outcome.err.splitlines()
    assert first.startswith("tracekit: stopped; ")
    assert others == [
        "tracekit: nothing was recorded: the command was stopped before a process of it had called a torch module and "
        "begun to record"
    ]
    assert not list(tmp_path.iterdir())


def test_a_stop_of_a_command_that_ends_just_then_is_no_error() -> None:
    running = subprocess.Popen(["true"], process_group=0)
    running.wait()
    running.wait = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    assert nsys.run(lambda: running) == nsys.Recorded(128 + signal.SIGINT, stopped=True)


ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_a_command_reads_from_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text("import torch\nprint('got', input())\ntorch.nn.Linear(2, 2)(torch.ones(2))")
    words = arguments("capture", "-o", "run", "--", sys.executable, "asks.py")
    terminal = [sys.executable, "-c", ON_A_TERMINAL, *words]
    subprocess.run(terminal, input=b"words\n", check=True, timeout=PATIENCE_S, env=environment(), cwd=tmp_path)
    assert len(tracekit.parse(tmp_path / "run.sqlite").calls()) == 1


def test_a_command_without_a_model_is_told_what_cannot_be_reached(place: Place) -> None:
    line = one_line(place.capture("-o", "run", "--", "sh", "-c", "exit 3"), 3)
    assert "no process of the command called a torch module" in line
    assert "PYTHONPATH" in line
    assert place.left() == set()


def test_a_stop_ends_all_processes_and_leaves_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    endless = "import os, time; from net import work; os.fork(); work(os.getpid(), 3); print('.', flush=True)\n"
    (tmp_path / "endless.py").write_text(f"{endless}time.sleep(60)\n")
    program = (sys.executable, "endless.py")
    outcome = stopped(tmp_path, signal.SIGINT, "-o", "run", "--engine", "torch", "--", *program, lines=2)
    assert outcome.code == 128 + signal.SIGINT
    pids = {int(path.stem): 3 for path in tmp_path.glob("*.truth")}
    assert len(pids) == 2
    assert calls_by_process(tracekit.parse(tmp_path / "run.sqlite")) == pids


HOOKED = "import sys; print('torch' in sys.modules, 'json' in sys.modules, len(sys.meta_path))"


def python(*args: str, **variables: str) -> list[str]:
    env = {"PATH": os.environ["PATH"], **variables}
    return subprocess.check_output([sys.executable, *args], text=True, stderr=subprocess.STDOUT, env=env).splitlines()


def test_the_startup_hook_does_nothing_unless_asked_and_runs_what_it_hides(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own', __name__)\n")
    plain = python("-c", HOOKED, PYTHONPATH=str(tmp_path))
    paths = os.pathsep.join([str(STARTUP), str(tmp_path)])
    assert python("-c", HOOKED, PYTHONPATH=paths) == plain
    asked = python("-c", HOOKED, PYTHONPATH=paths, TRACEKIT_RECORDING="{}")
    assert asked[0] == plain[0] == "own sitecustomize"
    assert asked[1].startswith("False False")
    assert python("-S", "-c", HOOKED, PYTHONPATH=paths, TRACEKIT_RECORDING="{}")[0].startswith("False")


def test_start_if_asked_does_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "nonsense", "{}", '{"folder": "/absent", "engine": "torch", "settings": {"skip": []}}'):
        monkeypatch.setenv("TRACEKIT_RECORDING", value)
        assert not processes.start_if_asked()


def recorded_until(end: Callable[[], None], window: ProcessWindow) -> None:
    window.recorder.emitter.opener("work")()
    window.recorder.emitter.close()
    end()


def test_a_process_that_begins_to_use_the_gpu_later_is_recorded_in_two_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    profile = profiler._new_profile

    def new_profile(*, record_shapes: bool, gpu: bool) -> object:
        asked.append(gpu)
        return profile(record_shapes=record_shapes, gpu=False)

    monkeypatch.setattr(profiler, "_new_profile", new_profile)
    window = ProcessWindow(Request(tmp_path, "torch", Settings()))
    window.open()
    recorded_until(window.gpu_begins, window)
    recorded_until(window.close, window)
    first, second = pieces(tmp_path)
    assert asked == [False, True]
    assert (first.pid, first.figures[OPENED]) == (second.pid, second.figures[OPENED]) == (os.getpid(), 1)
    assert unfinished(tmp_path) == {}


def test_what_was_recorded_before_a_window_is_dropped_is_in_no_piece(tmp_path: Path) -> None:
    window = ProcessWindow(Request(tmp_path, "torch", Settings()))
    for end, written in ((window.drop, 0), (window.close, 1)):
        window.open()
        recorded_until(end, window)
        assert (len(pieces(tmp_path)), unfinished(tmp_path)) == (written, {})


KILLED = """
import json, os, subprocess, time
from pathlib import Path
from net import Net, work
net = Net()
if not (pid := os.fork()):
    work("killed", 3, net)
    folder = Path(json.loads(os.environ["TRACEKIT_RECORDING"])["folder"])
    while not any("calls" in path.read_text() for path in folder.glob(f"{os.getpid()}-*.begun")):
        time.sleep(0.01)
    subprocess.run(["kill", "-9", str(os.getpid())])
os.waitpid(pid, 0)
work("main", 2, net)
"""


@pytest.mark.nsys
def test_under_nsys_a_killed_process_is_named_with_the_calls_that_are_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    args = ("--force", "--engine", "nsys", "-o", "run", "--", sys.executable, "-c", KILLED)
    outcome = separately("capture", *args, cwd=tmp_path)
    assert outcome.code == 0, outcome
    dataset = tracekit.parse(tmp_path / "run.sqlite", force=True)
    calls = Counter(dataset.calls(["pid"]).pid.tolist())
    killed, main = (json.loads((tmp_path / f"{name}.truth").read_text())[0] for name in ("killed", "main"))
    assert calls[main] == 4
    assert f"process {killed} was killed or crashed; {calls[killed]} of at least 6 calls of it are" in outcome.err
    assert "nsys lost" not in outcome.err
    assert "Exception ignored" not in outcome.err


@pytest.mark.nsys
def test_a_command_of_which_nsys_records_nothing_fails_and_keeps_the_report(tmp_path: Path) -> None:
    args = ("--force", "--engine", "nsys", "-o", "run", "--", sys.executable, "-S", "-c", "print(1)")
    outcome = separately("capture", *args, cwd=tmp_path)
    assert outcome.out == "1\n", outcome
    assert one_line(outcome).startswith("tracekit: nothing was recorded: no process of the command called")
    missing = tracekit.parse(tmp_path / "run.sqlite").manifest["missing"]
    assert [data["what"] for data in missing] == ["calls of modules", "GPU work"]
    assert not any("nsys profile" in data["remedy"] for data in missing)


def test_a_command_with_markers_of_its_own_gets_no_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = place.write(f'#!/bin/sh\necho "asked: $TRACEKIT_RECORDING" > {place.folder}/asked\nexit 9\n', "nsys")
    nsys.chmod(0o700)
    monkeypatch.setenv("TRACEKIT_NSYS", str(nsys))
    for own in ((), ("--enable-layerwise-nvtx-tracing",)):
        assert place.capture("-o", "run", "--force", "--", "true", *own, engine="nsys").code == 9
        assert ((place.folder / "asked").read_text() == "asked: \n") == bool(own)
