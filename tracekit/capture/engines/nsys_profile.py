"""The engine ``nsys``: runs the target in a new process under NVIDIA's nsys; a whole script as the command it is."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracekit.capture.arrivals import add_arrivals
from tracekit.capture.emit import nvtx_emitter
from tracekit.capture.processes.command import record_with_nsys
from tracekit.capture.run import Job, Outcome, load
from tracekit.errors import CaptureError, TracekitError, UsageError
from tracekit.nsight import nsys
from tracekit.storage.local_copies import temp_dir

NAME = "nsys"


def unavailable() -> str | None:
    """Why nsys cannot be run; None if it can."""
    try:
        return None if nsys.find() else f"nsys was not found; {nsys.INSTALL}"
    except CaptureError as error:
        return str(error)


def record(job: Job) -> Outcome:
    """Runs the target under nsys and exports the report that nsys writes."""
    tool = nsys.find()
    if tool is None:
        raise CaptureError(f"{unavailable()}, or record with --engine torch")
    nvtx_emitter()  # raises where nvtx cannot be used; so nsys need not be started
    settings = job.settings
    if job.target.endswith(".py") and not (settings.steps or settings.warmup or settings.ops):
        script = load(job.target, job.arguments).file
        return record_with_nsys([sys.executable, script, *job.arguments], settings, job.report)
    with temp_dir() as folder:
        outcome_file = folder / "outcome.json"
        argument = json.dumps([job.target, job.arguments, asdict(settings), outcome_file], default=str)
        command = [sys.executable, "-m", "tracekit.capture.child", argument]
        try:
            recorded = tool.record(command, job.report, windowed=True)
        except CaptureError as error:
            raise _problem(_child_outcome(outcome_file)) or error from None
        outcome = _child_outcome(outcome_file)
        arrived = add_arrivals(folder, job.report)
    warnings = [*arrived.warnings, *outcome.get("warnings", ()), *recorded.warnings]
    code = recorded.exit_code if recorded.stopped else outcome.get("exit_code", recorded.exit_code)
    if code != recorded.exit_code:
        warnings.append(f"nsys exited with code {recorded.exit_code} although the program had exited with {code}")
    problem = _problem(outcome)
    if arrived.empty and problem is None:
        reasons = "; ".join(warnings) or "no module was called"
        raise CaptureError(f"{nsys.NOTHING}: {reasons}", code or 1)  # the report is kept
    return Outcome(code, problem, outcome.get("figures", {}) | arrived.figures, tuple(warnings))


def _child_outcome(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    return {}


def _problem(outcome: dict[str, Any]) -> TracekitError | None:
    kind = UsageError if outcome.get("usage") else CaptureError
    return kind(outcome["problem"]) if outcome.get("problem") else None
