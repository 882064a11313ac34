"""Is a command recorded whose process calls a model?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.proof import comparing, programs, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import SCRIPT

if TYPE_CHECKING:
    from tracekit.proof.machine import Machine

NAME = "command"
ABOUT = "a command's calls are those that hooks counted: tracekit capture -- COMMAND"
LIMIT_S = 180
_SCRIPT = Path(programs.__path__[0]) / "script.py"


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Records the command."""
    command = [sys.executable, str(_SCRIPT), str(SCRIPT)]
    recording.record(folder, machine.recorder, trailing=command)


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares with hooks."""
    dataset = recording.dataset(folder)
    problems = comparing.call_problems(dataset, recording.truth(folder), SCRIPT)
    problems += comparing.without_work(dataset, recording.truth(folder))
    return Evidence(problems, {"calls": len(comparing.rows(dataset, "calls", ["call_id"]))})
