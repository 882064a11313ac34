"""Programs that end in all ways, without recording anything."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tracekit.errors import CaptureError
from tracekit.selftest import judge
from tracekit.selftest.judge import Evidence
from tracekit.selftest.programs import Program


def program(name: str, limit_s: int = 60, *, needs_gpu: bool = False) -> Program:
    rules, module = ((name,), ()) if name in RULES else ((), ("tests.selftest.endings", name))
    return Program(name=name, about="it holds", rules=rules, limit_s=limit_s, needs_gpu=needs_gpu, module=module)


def _passing(case):
    (case.folder / "run.sqlite").write_text("recorded")
    return Evidence([], {"compared": 3, "unknown": None})


def _refusing(_case):
    raise CaptureError("nothing was compared; try again")


def _raising(_case):
    raise ZeroDivisionError("a mistake")


def _hanging():
    with Path("sleep.txt").open("w") as output:
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=output)
    Path("began.txt").write_text("began")
    time.sleep(600)


RULES = {
    "passing": _passing,
    "failing": lambda _case: Evidence(["one is wrong\nand wide", "two are wrong"]),
    "refusing": _refusing,
    "raising": _raising,
    "unproved": lambda _case: Evidence([], {}, "the other part: no GPU"),
}
judge.RULES.update(RULES)
RUNS = {"crashing": lambda: os.kill(os.getpid(), signal.SIGSEGV), "hanging": _hanging}
passing, failing, refusing, raising, unproved, crashing = map(program, (*RULES, "crashing"))
lacking = program("lacking", needs_gpu=True)
hanging = program("hanging", limit_s=3)

if __name__ == "__main__":
    RUNS[sys.argv[1]]()
