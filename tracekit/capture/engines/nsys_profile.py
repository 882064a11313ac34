"""The engine ``nsys``: runs the target in a new process under NVIDIA's nsys."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tracekit.capture.engines.base import Outcome
from tracekit.errors import CaptureError, UsageError
from tracekit.nsight import nsys

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.capture.engines.base import Job
    from tracekit.errors import TracekitError

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
    warnings: list[str] = []
    with nsys.passing_folder(warnings) as folder:
        outcome_file = folder / "outcome.json"
        argument = json.dumps([job.target, job.arguments, asdict(job.settings), str(outcome_file)])
        command = [sys.executable, "-m", "tracekit.capture.child", argument]
        try:
            recorded = tool.record(command, job.report, windowed=True)
        except CaptureError as error:
            raise _problem(_child_outcome(outcome_file)) or error from None
        outcome = _child_outcome(outcome_file)
    warnings += [*outcome.get("warnings", ()), *recorded.warnings]
    code = recorded.exit_code if recorded.stopped else outcome.get("exit_code", recorded.exit_code)
    if code != recorded.exit_code:
        warnings.append(f"nsys exited with code {recorded.exit_code} although the program had exited with {code}")
    return Outcome(code, _problem(outcome), outcome.get("figures", {}), tuple(warnings))


def _child_outcome(path: Path) -> dict[str, Any]:
    """What the process under nsys reported at its end; empty if it was killed first."""
    try:
        outcome: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return outcome


def _problem(outcome: dict[str, Any]) -> TracekitError | None:
    """The failure that the process under nsys reported, if any."""
    if not outcome.get("problem"):
        return None
    kind = UsageError if outcome.get("usage") else CaptureError
    return kind(outcome["problem"])
