"""A check that hangs, and so does what it starts."""

from __future__ import annotations

import subprocess
import time

from tracekit.proof.base import Evidence

NAME = "hanging"
ABOUT = "what was promised holds"
LIMIT_S = 3


def missing(_machine):
    return None


def record(folder, _machine):
    subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=(folder / "sleep.txt").open("w"))
    (folder / "began.txt").write_text("began")
    time.sleep(600)


def judge(_folder, _machine):
    return Evidence([])
