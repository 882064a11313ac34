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


def captured(folder: Path, program: str, *args: object) -> Outcome:
    (folder / "program.py").write_text(MODEL + program)
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
    outcome = captured(tmp_path, POOL)
    line, ways = [sys.executable, "program.py"], {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    plain = subprocess.run(line, env=environment(), cwd=tmp_path, check=False, **ways)
    expected = (3, "end\nhook\nthread\ncannot schedule new futures after interpreter shutdown\n")
    assert outcome[:2] == (plain.returncode, plain.stdout) == expected
    assert calls(tmp_path) == 3
    assert "tracekit: waiting for ThreadPoolExecutor-" in outcome.err


WAIT_FOR_OTHERS = """
from glob import glob
open(f"{os.getpid()}.ready", "w").close()
while len(glob("*.ready")) < 3:
    time.sleep(0.01)
"""


def test_of_captures_to_one_place_at_once_none_is_lost(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda _: captured(tmp_path, WAIT_FOR_OTHERS, "--hierarchy"), range(3)))
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    names = {"run.sqlite", "run.2.sqlite", "run.3.sqlite"}
    assert {outcome.err.partition("report: ")[2].splitlines()[0] for outcome in outcomes} == names
    assert {path.name for path in tmp_path.glob("*.sqlite")} == names
    assert sum("another recording took this place" in outcome.err for outcome in outcomes) == 2
    assert {path.name for path in tmp_path.glob("*.json.gz")} == {name.replace("sqlite", "json.gz") for name in names}
    assert not list(tmp_path.glob(".*"))


def test_a_script_that_crashes_is_told_of_and_what_it_left_goes_with_the_next(tmp_path: Path) -> None:
    line = "tracekit: run.sqlite was not written, because the process was killed or crashed; "
    end = "if not os.fork():\n    time.sleep(1)\n    os._exit(0)\nimport ctypes; ctypes.string_at(0)\n"
    outcome = captured(tmp_path, end)
    assert (outcome.code, outcome.err.startswith(line)) == (-11, True), outcome
    assert len(list(tmp_path.glob(".run.sqlite.partial-*"))) == 1
    assert "killed" not in (outcome := captured(tmp_path, "os.closerange(3, 256)\n")).err
    assert outcome.code == 0
    assert not list(tmp_path.glob(".*"))


def test_a_script_that_calls_os_exit_keeps_its_code_and_its_recording(tmp_path: Path) -> None:
    outcome = captured(tmp_path, "if not os.fork():\n    os._exit(0)\nos.wait()\nos._exit(5)\n")
    assert outcome.code == 5
    assert [line.partition(":")[0].split()[0] for line in outcome.err.splitlines()] == ["recorded", "report", "next"]
    assert calls(tmp_path) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_failure_while_os_exit_writes_the_report_is_shown(tmp_path: Path) -> None:
    outcome = captured(tmp_path, "torch.profiler.profile.export_chrome_trace = lambda *_: 1 / 0\nos._exit(5)\n")
    first, *_, last = outcome.err.splitlines()
    expected = (5, "Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert (outcome.code, first, last) == expected
