"""``nsys``: runs the target in a process of its own under NVIDIA's nsys."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import nsys
from tracekit.capture.engines.base import Outcome
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
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
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "outcome.json"
        settings = json.dumps([job.target, job.arguments, asdict(job.settings), str(told)])
        command = [sys.executable, "-m", "tracekit.capture.child", settings]
        try:
            recorded = tool.record(command, job.report, windowed=True)
        except CaptureError as error:
            raise _problem(told) or error from None
        said = json.loads(told.read_text()) if told.exists() else {}
        return Outcome(recorded.exit_code, _problem(told), said.get("figures", {}))


def _problem(told: Path) -> TracekitError | None:
    """What the process under nsys said of its failure."""
    said = json.loads(told.read_text()) if told.exists() else {}
    if not said.get("problem"):
        return None
    kind = UsageError if said.get("usage") else CaptureError
    return kind(said["problem"])
