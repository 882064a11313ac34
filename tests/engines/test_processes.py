"""Tasks in processes of this machine: what a killed one costs, and that all end with the one that asked for them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.command import begun, environment
from tests.engines import tasks as work
from tests.pipeline.test_several_runs import check_ended, children
from tests.waiting import PATIENCE_S, wait_until
from tracekit.engines import Task, opened, processes
from tracekit.engines.processes import Processes, available_bytes
from tracekit.errors import DatasetError


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as engine:
        yield engine


def tasks(function: object, count: int, needed_bytes: int = 0) -> list[Task]:
    return [Task(f"t{number}", partial(function, number), needed_bytes) for number in range(count)]


def test_every_task_has_one_outcome_and_progress_comes_with_its_name(two: Processes) -> None:
    with opened("here") as here:
        for engine in (two, here):
            assert work.results(engine, tasks(work.doubled, 20)) == {number: 2 * number for number in range(20)}
    told: list[tuple[str, float]] = []
    list(two.outcomes(tasks(work.doubled, 2), lambda name, share: told.append((name, share))))
    assert sorted(told) == [("t0", 0.5), ("t0", 1.0), ("t1", 0.5), ("t1", 1.0)]


@pytest.mark.parametrize("most", [1, 2])
def test_a_killed_process_loses_its_own_task_only_and_says_how_it_ended(most: int) -> None:
    these = tasks(partial(work.killed_if, 3), 8)
    with Processes(most) as engine:
        assert work.results(engine, these) == {number: number for number in range(8)} | {3: "signal 9"}


def test_what_a_task_raises_is_raised_here_whole(two: Processes) -> None:
    with pytest.raises(DatasetError, match="run: is odd; mend 0") as raised:
        work.results(two, tasks(work.refused, 1))
    assert (str(raised.value.path), raised.value.problem, raised.value.remedy) == ("run", "is odd", "mend 0")
    assert work.results(two, tasks(work.doubled, 1)) == {0: 0}


def test_a_progress_that_raises_stops_its_task() -> None:
    def stop(name: str, share: float) -> None:
        raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError, match="forever"), Processes(1) as engine:
        list(engine.outcomes([Task("forever", work.told_forever)], stop))


def test_no_more_tasks_run_at_once_than_memory_holds(two, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(processes, "available_bytes", lambda: 10)
    for needed_bytes, most in ((6, 1), (11, 1), (5, 2)):
        (folder := tmp_path / f"{needed_bytes}").mkdir()
        these = tasks(partial(work.at_once, folder, most), 4, needed_bytes)
        assert max(work.results(two, these).values()) == most


def test_available_memory_is_what_the_system_and_the_container_say(tmp_path, monkeypatch) -> None:
    most, now = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(processes, "_LIMITS", ((most, now),))
    assert available_bytes() > 1 << 20
    for limit, used, left in (("max", 1000, None), (5000, 1000, 4000), (5000, 6000, 0)):
        most.write_text(f"{limit}\n")
        now.write_text(f"{used}\n")
        assert available_bytes() > 1 << 20 if left is None else available_bytes() == left


def test_a_script_needs_no_guard_and_its_own_functions_travel(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from functools import partial\nfrom tests.engines.tasks import results\n"
        "from tracekit.engines import Task, opened\nprint('once')\n"
        "def squared(number, share):\n    return number * number\n"
        "with opened() as engine:\n    done = results(engine, [Task('t', partial(squared, at)) for at in range(4)])\n"
        "print([done[at] for at in range(4)])\n"
    )
    for command in ([script], ["-c", script.read_text()]):
        # On a busy machine, loky's tracker may see the end of a semaphore too late, and warns.
        quiet = environment() | {"PYTHONWARNINGS": "ignore:resource_tracker:UserWarning"}
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=quiet, check=True)
        assert (done.stdout, done.stderr) == ("once\n[0, 1, 4, 9]\n", "")


#: Two tasks that each run a program.
PROGRAMS = """
import sys
from functools import partial
from pathlib import Path
from tests.engines.tasks import with_a_program
from tracekit.engines import Task
from tracekit.engines.processes import Processes
with Processes(2) as engine:
    for _ in engine.outcomes([Task("a", partial(with_a_program, Path(sys.argv[1])))] * 2, print):
        pass
"""


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGKILL, False)])
def test_when_the_process_that_asked_ends_its_workers_end_with_their_programs_and_files(
    number: signal.Signals, to_all: bool, tmp_path: Path
) -> None:
    # In a group of its own, as in a terminal.
    process = begun(sys.executable, "-c", PROGRAMS, tmp_path, start_new_session=True)
    wait_until(lambda: sum(bool(path.read_text()) for path in tmp_path.iterdir()) == 2, process)
    started = children(process.pid) | {int(path.read_text()) for path in tmp_path.iterdir()}
    (os.killpg if to_all else os.kill)(process.pid, number)
    _, complained = process.communicate(timeout=PATIENCE_S)
    check_ended(started)
    assert not any(tmp_path.iterdir())
    assert complained.count("KeyboardInterrupt") == (number == signal.SIGINT), "only in the process that asked"


#: Tasks whose caller is interrupted where Python looks for signals: as functions and rounds of loops begin.
INTERRUPTED = """
import dis, sys, threading
from tracekit.engines import Task, processes

class Started:
    has_begun, has_ended = True, False

    def __init__(self):
        self.is_stopped = threading.Event()
        self.stop = self.is_stopped.set

    def result(self, task, progress):
        begun.append(task)
        self.is_stopped.wait()

    def end(self, patience_s=0):
        pass

def traced(frame, event, _):
    global left
    if frame.f_code.co_filename == threading.__file__:
        return None
    frame.f_trace_opcodes = True
    codes = [dis.opname[code] for code in frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 4 : 2]]
    looks = event == "call" or (codes[1] if codes[0] == "EXTENDED_ARG" else codes[0]) == "JUMP_BACKWARD"
    if looks and event != "line" and len(begun) == 2:
        left -= 1
        if not left:
            raise KeyboardInterrupt
    return traced

processes._Process, processes._HEARING_S = Started, 0.001
for place in range(1, 40):
    begun, left = [], place
    try:
        with processes.Processes(2) as engine:
            waiting = engine.outcomes([Task("a", print)] * 2, print)
            sys.settrace(traced)
            next(waiting)
    except KeyboardInterrupt:
        sys.settrace(None)
"""


def test_ctrl_c_anywhere_in_the_wait_for_tasks_ends_it() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=PATIENCE_S, env=environment())
