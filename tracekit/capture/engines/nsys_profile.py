"""``nsys``: runs the target in a process of its own under NVIDIA's nsys."""

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
    """Why there is no nsys to run."""
    try:
        return None if nsys.find() else f"there is no nsys; {nsys.INSTALL}"
    except CaptureError as error:
        return str(error)


def record(job: Job) -> Outcome:
    """Runs the target under nsys, which writes its report, and exports that."""
    tool = nsys.find()
    if tool is None:
        raise CaptureError(f"{unavailable()}, or record with --engine torch")
    warnings: list[str] = []
    with nsys.passing_folder(warnings) as folder:
        told = folder / "outcome.json"
        settings = json.dumps([job.target, job.arguments, asdict(job.settings), str(told)])
        command = [sys.executable, "-m", "tracekit.capture.child", settings]
        try:
            recorded = tool.record(command, job.report, windowed=True)
        except CaptureError as error:
            raise _problem(_said(told)) or error from None
        said = _said(told)
    warnings += [*said.get("warnings", ()), *recorded.warnings]
    code = recorded.exit_code if recorded.stopped else said.get("exit_code", recorded.exit_code)
    if code != recorded.exit_code:
        left = f"nsys left with exit code {recorded.exit_code}"
        warnings.append(f"{left} after the program had ended with {code}")
    return Outcome(code, _problem(said), said.get("figures", {}), tuple(warnings))


def _said(told: Path) -> dict[str, Any]:
    """What the process under nsys said at its end; nothing if it was killed before or while it did."""
    try:
        said: dict[str, Any] = json.loads(told.read_text())
    except (OSError, ValueError):
        return {}
    return said


def _problem(said: dict[str, Any]) -> TracekitError | None:
    """Its failure."""
    if not said.get("problem"):
        return None
    kind = UsageError if said.get("usage") else CaptureError
    return kind(said["problem"])
