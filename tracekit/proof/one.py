"""One check in its process: it records and judges.

It finds the machine in ``machine.json`` of the folder, and writes what it found into ``evidence.json``.
"""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.proof import recording
from tracekit.proof.machine import restored

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.base import Check, Evidence
    from tracekit.proof.machine import Machine

MACHINE, EVIDENCE = "machine.json", "evidence.json"
#: The suffix of nsys's own report, beside the exported one.
NATIVE = ".nsys-rep"


def evidence(check: Check, folder: Path, machine: Machine) -> Evidence:
    """Records and judges. On a busy machine nsys loses one recording in thirty as a whole: then it records again."""
    check.record(folder, machine)
    if not _is_lost(folder):
        return check.judge(folder, machine)
    shutil.rmtree(folder / recording.TRUTH)
    check.record(folder, machine)
    found = check.judge(folder, machine)
    return replace(found, figures={**found.figures, "recordings_lost_by_nsys": 1})


def _is_lost(folder: Path) -> bool:
    """Whether nsys recorded, and has not a single range."""
    report = folder / recording.REPORT
    if not (report.exists() and report.with_suffix(NATIVE).exists()):
        return False
    return not recording.rows_of(folder, "ranges")


def run_check(module: str, folder: Path) -> None:
    """Runs the check and writes what it found; an error of tracekit's is a problem like others."""
    check: Check = importlib.import_module(module)
    machine = restored(json.loads((folder / MACHINE).read_text("utf-8")))
    try:
        found = evidence(check, folder, machine)
    except TracekitError as error:
        values: dict[str, object] = {"problems": str(error).splitlines(), "figures": {}, "unproved": None}
    else:
        values = {"problems": found.problems, "figures": found.figures, "unproved": found.unproved}
    (folder / EVIDENCE).write_text(json.dumps(values), "utf-8")
