"""Programs end under ``tracekit capture`` as they do without it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tracekit
from tests.command import Outcome, environment, separately
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.torch

MODEL = """
import os, signal, sys, threading, time, torch
model = torch.nn.Linear(2, 2)
def call():
    model(torch.zeros(1, 2))
call()
"""


def plain(folder: Path, program: str) -> Outcome:
    """The program as it runs and ends without tracekit."""
    (folder / "program.py").write_text(MODEL + program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        cwd=folder,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def captured(folder: Path, *args: object) -> Outcome:
    # By pipes: the process that tells of a crash holds them until it has.
    args = ("--engine", "torch", "-o", "run.sqlite", *args, "program.py")
    return separately("capture", *args, cwd=folder, before=bool)


def calls(folder: Path) -> int:
    return len(tracekit.parse(folder / "run.sqlite", force=True).calls(["module"]))


POOL = """
import concurrent.futures
pool = concurrent.futures.ThreadPoolExecutor(1)
def later():
    time.sleep(4)
    call()
    try:
        pool.submit(call)
    except RuntimeError as error:
        print(error)
pool.submit(later)
threading._register_atexit(print, "hook")
threading.Thread(target=lambda: (time.sleep(1), call(), print("thread"))).start()
print("end")
sys.exit(3)
"""


def test_pools_and_threads_that_outlive_a_script_end_as_python_ends_them(tmp_path: Path) -> None:
    expected = plain(tmp_path, POOL)
    outcome = captured(tmp_path)
    assert (
        outcome[:2]
        == expected[:2]
        == (3, "end\nhook\nthread\ncannot schedule new futures after interpreter shutdown\n")
    )
    assert calls(tmp_path) == 3
    assert "tracekit: waiting for ThreadPoolExecutor-" in outcome.err


WAIT_FOR_OTHERS = """
from glob import glob
open(f"{os.getpid()}.ready", "w").close()
while len(glob("*.ready")) < 3:
    time.sleep(0.01)
"""


def test_of_captures_to_one_place_at_once_none_is_lost(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MODEL + WAIT_FOR_OTHERS)
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda _: captured(tmp_path, "--hierarchy"), range(3)))
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    names = {"run.sqlite", "run.2.sqlite", "run.3.sqlite"}
    assert {outcome.err.partition("report: ")[2].splitlines()[0] for outcome in outcomes} == names
    assert {path.name for path in tmp_path.glob("*.sqlite")} == names
    assert sum("another recording took this place" in outcome.err for outcome in outcomes) == 2
    assert {path.name for path in tmp_path.glob("*.json.gz")} == {name.replace("sqlite", "json.gz") for name in names}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "import ctypes; ctypes.string_at(0)"])
def test_a_script_that_is_killed_or_crashes_is_told_of_and_what_it_left_goes_with_the_next(
    tmp_path: Path, end: str
) -> None:
    expected = plain(tmp_path, f"if not os.fork():\n    time.sleep(1)\n    os._exit(0)\n{end}\n")
    outcome = captured(tmp_path)
    assert outcome.code == expected.code < 0
    line = "tracekit: run.sqlite was not written, because the process was killed or crashed; "
    assert outcome.err.removeprefix(expected.err).startswith(line)
    assert list(tmp_path.glob(".run.sqlite.partial-*"))
    plain(tmp_path, "os.closerange(3, 256)\n")
    assert "killed" not in (outcome := captured(tmp_path)).err
    assert outcome.code == 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_no_place_for_a_report(tmp_path: Path, device: str) -> None:
    plain(tmp_path, "")
    outcome = separately("capture", "-o", device, "program.py", cwd=tmp_path)
    assert outcome.code == 1
    assert outcome.err == f"tracekit: {device}: is a device, not a file; choose another place with -o\n"


def test_a_script_that_calls_os_exit_keeps_its_code_and_its_recording(tmp_path: Path) -> None:
    expected = plain(tmp_path, "if not os.fork():\n    os._exit(0)\nos.wait()\nos._exit(5)\n")
    outcome = captured(tmp_path)
    assert outcome.code == expected.code == 5
    assert [line.partition(":")[0].split()[0] for line in outcome.err.splitlines()] == ["recorded", "report", "next"]
    assert calls(tmp_path) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_failure_while_os_exit_writes_the_report_is_shown(tmp_path: Path) -> None:
    plain(tmp_path, "torch.profiler.profile.export_chrome_trace = lambda *_: 1 / 0\nos._exit(5)\n")
    outcome = captured(tmp_path)
    lines = outcome.err.splitlines()
    assert (outcome.code, lines[0], lines[-1]) == (
        5,
        "Traceback (most recent call last):",
        "ZeroDivisionError: division by zero",
    )
