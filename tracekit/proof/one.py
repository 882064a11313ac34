"""One check in its process: it records and judges.

It finds the machine in ``machine.json`` of the folder, and writes what it found into ``evidence.json``.
"""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.errors import CaptureError, TracekitError
from tracekit.nsight import nsys
from tracekit.proof import recording
from tracekit.proof.machine import restored

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.base import Check, Evidence
    from tracekit.proof.machine import Machine

MACHINE, EVIDENCE = "machine.json", "evidence.json"


def evidence(check: Check, folder: Path, machine: Machine) -> Evidence:
    """Records and judges. On a busy machine nsys loses one recording in thirty as a whole: then it records again."""
    if not _lost(check, folder, machine):
        return check.judge(folder, machine)
    for path in (*folder.glob(f"{recording.STEM}.*"), folder / recording.TRUTH):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    check.record(folder, machine)
    found = check.judge(folder, machine)
    return replace(found, figures={**found.figures, "recordings_lost_by_nsys": 1})


def _lost(check: Check, folder: Path, machine: Machine) -> bool:
    """Records. Returns whether nsys lost the recording: it failed itself, or its report has not a single range."""
    try:
        check.record(folder, machine)
    except CaptureError as error:
        if machine.nsys_problem is not None or nsys.NOTHING not in str(error):
            raise
        return True
    report = folder / recording.REPORT
    native = report.with_suffix(nsys.NATIVE)
    return report.exists() and native.exists() and not recording.rows_of(folder, "ranges")


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
