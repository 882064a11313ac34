"""Programs that end in all ways, without recording anything."""

import os
import signal
import subprocess
import time

from tracekit.errors import CaptureError
from tracekit.selftest.judge import Evidence
from tracekit.selftest.programs import Program


def program(name: str, limit_s: int = 60, *, needs_gpu: bool = False) -> Program:
    about, table = "what was promised holds", "tests.selftest.endings"
    return Program(name=name, about=about, rules=(name,), limit_s=limit_s, needs_gpu=needs_gpu, table=table)


passing = program("passing")
failing = program("failing")
refusing = program("refusing")
crashing = program("crashing")
raising = program("raising")
leaving = program("leaving")
lacking = program("lacking", needs_gpu=True)
unproved = program("unproved")
hanging = program("hanging", limit_s=3)
PROGRAMS = (passing, failing, refusing, crashing, raising, leaving, lacking, unproved, hanging)


def _passing(case):
    (case.folder / "run.sqlite").write_text("recorded")
    return Evidence([], {"compared": 3, "unknown": None})


def _refusing(_case):
    raise CaptureError("nothing was recorded; try again")


def _crashing(_case):
    os.kill(os.getpid(), signal.SIGSEGV)


def _raising(_case):
    raise ZeroDivisionError("a mistake")


def _hanging(case):
    subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=(case.folder / "sleep.txt").open("w"))
    (case.folder / "began.txt").write_text("began")
    time.sleep(600)


RULES = {
    "passing": _passing,
    "failing": lambda _case: Evidence(["one is wrong\nand wide", "two are wrong"]),
    "refusing": _refusing,
    "crashing": _crashing,
    "raising": _raising,
    "leaving": lambda _case: os._exit(0),
    "unproved": lambda _case: Evidence([], {}, "the other part: no GPU"),
    "hanging": _hanging,
}
