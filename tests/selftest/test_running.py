"""A self-test ends with a verdict on every program, however it ends, and leaves a whole folder or none."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.command import ROOT, environment
from tests.selftest.endings import crashing, failing, hanging, lacking, passing, raising, refusing, unproved
from tests.waiting import PATIENCE_S, wait_until
from tracekit.errors import CaptureError
from tracekit.nsight.nsys import NOTHING
from tracekit.selftest import Program, prove, running
from tracekit.selftest.judge import Machine
from tracekit.selftest.running import examined, last_line


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "examined", lambda _folder: Machine(torch="2.13.0"))


def proved(place: Path, *programs: Program, **options: Any) -> dict[str, Any]:
    prove(place, programs, bool, **options)
    return json.loads((place / running.FILE).read_text("utf-8"))


def test_a_program_that_passes_leaves_its_report_and_its_figures_and_a_summary_as_the_readme_describes(
    tmp_path: Path,
) -> None:
    found = proved(tmp_path / "out", passing)
    (one,) = found["checks"]
    assert (one["verdict"], one["why"], one["problems"]) == ("passed", "", [])
    assert one["figures"] == {"compared": 3, "unknown": None}
    assert "passing/run.sqlite" in one["files"]
    assert (tmp_path / "out" / "passing" / "run.sqlite").read_text() == "recorded"
    assert (found["complete"], found["counts"]) == (True, {"passed": 1, "failed": 0, "missing": 0})
    text = (ROOT / "tracekit" / "selftest" / "README.md").read_text("utf-8").partition("## summary.json")[2]
    assert all(f"`{name}`" in text or f"`{name}[]`" in text for name in found)
    assert all(f"`{name}`" in text for name in (*one, *found["machine"]))
    assert found["format"] == running.FORMAT == 1


def test_every_other_end_is_a_verdict_with_its_reason_in_one_line(tmp_path: Path) -> None:
    """One failure does not keep the others from running."""
    lines: list[str] = []
    programs = [failing, refusing, crashing, raising, lacking, unproved]
    found = prove(tmp_path / "out", programs, lines.append)
    assert [(one.verdict, one.why) for one in found.outcomes] == [
        ("failed", "one is wrong and wide"),
        ("failed", "nothing was compared; try again"),
        ("failed", "tests.selftest.endings crashing was ended by SIGSEGV: it printed nothing"),
        ("failed", "ZeroDivisionError: a mistake"),
        ("missing", "no GPU that torch can use"),
        ("missing", "the other part: no GPU"),
    ]
    assert [line.split()[:2] for line in lines[:2]] == [["examining", "the"], ["failed", "failing"]]
    assert found.counts == {"passed": 0, "failed": 4, "missing": 2}


def test_a_program_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(running, "PATIENCE_S", 0.2)
    (one,) = proved(tmp_path / "out", hanging)["checks"]
    expected = "tests.selftest.endings hanging did not end within 3 s and was stopped: it printed nothing"
    assert (one["verdict"], one["why"]) == ("failed", expected)
    check_ended(tmp_path)


def check_ended(folder: Path) -> None:
    """Waits until no process has its output in the folder."""

    def runs(process: Path) -> bool:
        with suppress(OSError):
            return process.name.isdecimal() and str(folder) in str((process / "fd" / "1").readlink())
        return False

    wait_until(lambda: not any(map(runs, Path("/proc").iterdir())))


@pytest.mark.parametrize("times", [1, 2])
def test_what_nsys_loses_is_recorded_again_once_and_counted(times: int, tmp_path: Path, monkeypatch) -> None:
    lost = f"tracekit capture ended with exit code 1: tracekit: {NOTHING}: nsys has lost everything"
    problems = [*times * [lost], None]

    def run(_line: tuple[str, ...], log: Path, _limit_s: float) -> str | None:
        (log.parent / "truth" / f"{len(problems)}.json").touch()
        return problems.pop(0)

    monkeypatch.setattr(running, "_run", run)
    (one,) = proved(tmp_path / "out", replace(passing, arguments=("model.py",)))["checks"]
    assert len(list((tmp_path / "out" / "passing" / "truth").iterdir())) == 1
    assert (one["verdict"], one["why"]) == (("passed", "") if times == 1 else ("failed", lost))
    assert one["figures"]["recordings_lost_by_nsys"] == times


@pytest.mark.parametrize("error", [CaptureError("the first use of torch was ended by SIGSEGV"), KeyboardInterrupt()])
def test_a_machine_that_cannot_be_examined_and_ctrl_c_before_anything_has_ended_leave_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "examined", Mock(side_effect=error))
    with pytest.raises(type(error)) as raised:
        prove(tmp_path / "out", [passing, failing], bool)
    assert raised.value is error
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_replaced_only_by_force_and_only_if_it_is_a_self_test(tmp_path: Path) -> None:
    place = tmp_path / "out"
    proved(place, passing)
    with pytest.raises(CaptureError, match="already exists; replace it with --force"):
        prove(place, [failing], bool)
    assert (place / "passing").exists()
    assert proved(place, failing, force=True)["checks"][0]["name"] == "failing"
    assert not (place / "passing").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(CaptureError, match="is not the folder of a self-test"):
        prove(mine, [passing], bool, force=True)
    assert (mine / "notes.txt").read_text() == "mine"
    with pytest.raises(CaptureError, match=r"out: cannot be written .*; "):
        prove(mine / "notes.txt" / "out", [passing], bool)


PROGRAM = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from tests.selftest.endings import hanging, passing
from tracekit.cli import prepared
from tracekit.selftest import prove, running
from tracekit.selftest.judge import Machine
running.examined = lambda _folder: Machine()
hanging = replace(hanging, limit_s=600)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
programs = [passing, hanging, passing]
sys.exit(prepared(lambda: prove(Path(sys.argv[1]), programs, lambda _line: None).exit_code))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_had_ended_and_stops_the_rest(number: signal.Signals, tmp_path: Path) -> None:
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "out")]
    with subprocess.Popen(line, env=environment(), cwd=ROOT, stderr=subprocess.DEVNULL) as started:
        wait_until(lambda: [*tmp_path.rglob("began.txt")], started)
        started.send_signal(number)
        try:
            assert started.wait(PATIENCE_S) == 128 + number
        finally:
            started.kill()
    found = json.loads((tmp_path / "out" / running.FILE).read_text("utf-8"))
    assert not found["complete"]
    stopped = ("missing", "stopped before it had ended")
    assert [(one["verdict"], one["why"]) for one in found["checks"]] == [("passed", ""), stopped, stopped]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    check_ended(tmp_path)


#: What torch says last of an error of CUDA's.
OF_CUDA = """Traceback (most recent call last):
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

[W1123 00:00:00.0 CUDAGuardImpl.h:119] Warning: CUDA warning (function destroyEvent)
"""


def test_the_reason_is_the_error_of_cuda_and_not_the_advice_behind_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OF_CUDA)
    assert last_line(tmp_path / "log") == OF_CUDA.splitlines()[1]


def test_a_torch_that_cannot_be_used_is_one_line_with_its_own_reason(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "packages" / "torch").mkdir(parents=True)
    error = "raise RuntimeError('CUDA error: out of memory')"
    (tmp_path / "packages" / "torch" / "__init__.py").write_text(error)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}{os.pathsep}{ROOT}")
    with pytest.raises(CaptureError) as failure:
        examined(tmp_path)
    said = "tracekit.selftest.models about ended with exit code 1: RuntimeError: CUDA error: out of memory"
    assert str(failure.value) == f"the first use of torch: {said}"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("does", "limit_s", "said"),
    [
        ("sleep 600", 3, "the first recording with nsys: tracekit capture did not end within 3 s and was stopped"),
        ("echo Generating; exit 1", 60, "nsys"),
    ],
)
def test_an_nsys_that_hangs_or_cannot_export_leaves_all_else_to_be_tested(does, limit_s, said, tmp_path, monkeypatch):
    tool = tmp_path / "nsys"
    tool.write_text(f"#!/bin/sh\ncase $1 in --version) echo 2025.3.1;; *) {does};; esac\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TRACEKIT_NSYS", str(tool))
    monkeypatch.setattr(running, "NSYS_LIMIT_S", limit_s)
    found = examined(tmp_path)
    assert found.torch is not None
    assert said in str(found.nsys_problem)
    assert "\n" not in str(found.nsys_problem)
