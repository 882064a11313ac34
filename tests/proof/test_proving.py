"""A proof ends with a verdict on every check, however it ends, and leaves a whole folder or none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT, environment
from tests.proof.endings import (
    crashing,
    failing,
    hanging,
    lacking,
    losing,
    passing,
    raising,
    refusing,
    unproved,
)
from tracekit.errors import CaptureError
from tracekit.nsight.nsys import Nsys
from tracekit.proof import Watchers, machine, prove, proving, summary
from tracekit.proof.machine import Machine

WATCHERS = Watchers(lambda _line: None)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is known: the examination takes torch and seconds."""
    monkeypatch.setattr(machine, "examined", lambda _folder: Machine(torch="2.13.0"))


def proved(place: Path, *checks: Any, **options: Any) -> dict[str, Any]:
    prove(place, checks, WATCHERS, **options)
    return read(place)


def read(place: Path) -> dict[str, Any]:
    return json.loads((place / summary.FILE).read_text("utf-8"))


def verdict(place: Path, check: Any) -> tuple[str, str]:
    (found,) = proved(place, check)["checks"]
    return found["verdict"], found["why"]


def test_a_check_that_passes_leaves_its_report_and_its_figures(tmp_path: Path) -> None:
    found = proved(tmp_path / "out", passing)
    (one,) = found["checks"]
    assert (one["verdict"], one["why"], one["problems"]) == ("passed", "", [])
    assert one["figures"] == {"compared": 3, "unknown": None}
    assert "passing/run.sqlite" in one["files"]
    assert (tmp_path / "out" / "passing" / "run.sqlite").read_text() == "recorded"
    assert (found["complete"], found["counts"]) == (True, {"passed": 1, "failed": 0, "missing": 0})


@pytest.mark.parametrize(
    ("check", "expected", "why"),
    [
        (failing, "failed", "one is wrong and wide"),
        (refusing, "failed", "nothing was recorded; try again"),
        (crashing, "failed", "was ended by SIGSEGV: it printed nothing"),
        (raising, "failed", "ended with exit code 1: ZeroDivisionError: a mistake"),
        (lacking, "missing", "no such thing here"),
        (unproved, "missing", "the other part: no GPU"),
    ],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_every_other_end_is_a_verdict_with_its_reason_in_one_line(
    check: Any, expected: str, why: str, tmp_path: Path
) -> None:
    assert verdict(tmp_path / "out", check) == (expected, why)


def test_a_check_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(proving.children, "PATIENCE_S", 0.2)
    expected = "did not end within 3 s and was stopped: it printed nothing"
    assert verdict(tmp_path / "out", hanging) == ("failed", expected)
    assert ended(tmp_path)


def sleeping(folder: Path) -> list[int]:
    """Processes that write into files below the folder."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and str(folder) in str((process / "fd" / "1").readlink()):
                found.append(int(process.name))
    return found


def ended(folder: Path) -> bool:
    """Whether they end: what is killed is gone a moment later."""
    end = time.monotonic() + 20
    while sleeping(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return not sleeping(folder)


@pytest.mark.parametrize("nsys", ["failing", "empty"])
def test_what_nsys_loses_is_recorded_again_and_said(nsys: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "examined", lambda _folder: Machine(nsys=nsys, nsys_problem=None))
    (one,) = proved(tmp_path / "out", losing)["checks"]
    assert (one["verdict"], one["why"], one["figures"]) == ("passed", "", {"recordings_lost_by_nsys": 1})


def test_one_failure_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    lines: list[str] = []
    found = prove(tmp_path / "out", [crashing, passing], Watchers(lines.append))
    assert [one.verdict for one in found.outcomes] == ["failed", "passed"]
    assert found.exit_code == 1
    assert [line.split()[:2] for line in lines] == [["examining", "the"], ["failed", "crashing"], ["passed", "passing"]]


def test_a_machine_that_cannot_be_examined_fails_every_check_and_says_why(tmp_path: Path, monkeypatch) -> None:
    def crash(_folder: Path) -> Machine:
        raise CaptureError("the examination was ended by SIGSEGV: it printed nothing")

    monkeypatch.setattr(machine, "examined", crash)
    found = proved(tmp_path / "out", passing, failing)
    assert found["machine"] is None
    assert {one["why"] for one in found["checks"]} == {"the examination was ended by SIGSEGV: it printed nothing"}
    assert "could not be examined" in (tmp_path / "out" / "summary.md").read_text("utf-8")


def test_the_fields_of_the_summary_are_those_that_the_readme_lists(tmp_path: Path) -> None:
    found = proved(tmp_path / "out", passing)
    text = (ROOT / "tracekit" / "proof" / "README.md").read_text("utf-8").partition("## summary.json")[2]
    assert all(f"`{name}`" in text or f"`{name}[]`" in text for name in found)
    assert all(f"`{name}`" in text for name in (*found["checks"][0], *found["machine"]))
    assert found["format"] == summary.FORMAT == 1


def test_the_page_says_verdicts_reasons_figures_and_the_machine(tmp_path: Path) -> None:
    proved(tmp_path / "out", passing, failing, unproved)
    page = (tmp_path / "out" / "summary.md").read_text("utf-8")
    assert "1 passed, 1 failed, 1 missing" in page
    assert "| failing | ❌ failed | one is wrong and wide |" in page
    assert "* two are wrong" in page
    assert "| unknown | not known |" in page
    assert "| torch | 2.13.0 |" in page
    assert "Without a GPU" in page


def test_what_exists_is_replaced_only_by_force_and_only_if_it_is_a_proof(tmp_path: Path) -> None:
    place = tmp_path / "out"
    proved(place, passing)
    with pytest.raises(CaptureError, match="already exists; replace it with --force"):
        prove(place, [failing], WATCHERS)
    assert read(place)["checks"][0]["name"] == "passing"
    assert proved(place, failing, force=True)["checks"][0]["name"] == "failing"
    assert not (place / "passing").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(CaptureError, match="is not the folder of a proof"):
        prove(mine, [passing], WATCHERS, force=True)
    assert (mine / "notes.txt").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match=r"out: cannot be written .*; "):
        prove(tmp_path / "file" / "out", [passing], WATCHERS)


class _Stopping:
    """A check during which somebody presses Ctrl-C."""

    NAME, ABOUT, LIMIT_S = "stopping", "nothing", 1

    @staticmethod
    def missing(_machine: Machine) -> str | None:
        raise KeyboardInterrupt


def test_ctrl_c_keeps_what_had_ended_and_says_what_had_not(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        prove(tmp_path / "out", [passing, _Stopping(), failing], WATCHERS)
    found = read(tmp_path / "out")
    assert not found["complete"]
    assert [(one["verdict"], one["why"]) for one in found["checks"]] == [
        ("passed", ""),
        ("missing", "stopped before it had ended"),
        ("missing", "stopped before it had ended"),
    ]
    assert "stopped before all checks had run" in (tmp_path / "out" / "summary.md").read_text("utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_before_anything_has_ended_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        prove(tmp_path / "new" / "out", [_Stopping(), passing], WATCHERS)
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import signal, sys
from pathlib import Path
from tests.proof.endings import hanging, passing
from tracekit.cli import prepared
from tracekit.proof import Watchers, machine, prove
machine.examined = lambda _folder: machine.Machine()
hanging.LIMIT_S = 600
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
sys.exit(prepared(lambda: prove(Path(sys.argv[1]), [passing, hanging], Watchers(lambda _line: None)).exit_code))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_check_stops_it_and_leaves_a_whole_folder(number: signal.Signals, tmp_path: Path) -> None:
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "out")]
    with subprocess.Popen(line, env=environment(), cwd=ROOT, stderr=subprocess.DEVNULL) as running:
        end = time.monotonic() + 60
        while not list(tmp_path.rglob("began.txt")) and time.monotonic() < end:
            time.sleep(0.05)
        running.send_signal(number)
        try:
            assert running.wait(60) == 128 + number
        finally:
            running.kill()
    assert [one["verdict"] for one in read(tmp_path / "out")["checks"]] == ["passed", "missing"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / "hanging").exists()
    assert ended(tmp_path)


def test_options_replace_those_that_tracekit_gives_to_nsys(tmp_path: Path) -> None:
    """A script stands in for nsys and writes down how it was called."""
    tool = tmp_path / "nsys"
    told = tmp_path / "told.txt"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {told}\necho --cuda-graph-trace --sample\n')
    tool.chmod(0o755)
    with pytest.raises(CaptureError, match="nothing was recorded"):
        Nsys(tool).record(["true"], tmp_path / "run.sqlite", options={"--cuda-graph-trace": "graph"})
    called = next(line for line in told.read_text().splitlines() if "--trace=" in line)
    assert "--cuda-graph-trace=graph" in called
    assert "--sample=none" in called
    assert "node" not in called
