"""Is a script recorded that calls its model in a loop of its own?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.proof import comparing, programs, recording
from tracekit.proof.base import Evidence
from tracekit.proof.programs.plans import SCRIPT

if TYPE_CHECKING:
    from tracekit.proof.machine import Machine

NAME = "script"
ABOUT = "a script's calls are those that hooks counted: tracekit capture script.py -- ARGUMENTS"
LIMIT_S = 180
_SCRIPT = Path(programs.__path__[0]) / "script.py"


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Records the script."""
    recording.record(folder, [str(_SCRIPT), *machine.recorder], trailing=[str(SCRIPT)])


def judge(folder: Path, _machine: Machine) -> Evidence:
    """Compares with hooks."""
    dataset = recording.dataset(folder)
    problems = comparing.call_problems(dataset, recording.truth(folder), SCRIPT)
    problems += comparing.without_work(dataset, recording.truth(folder))
    return Evidence(problems, {"calls": len(comparing.rows(dataset, "calls", ["call_id"]))})
