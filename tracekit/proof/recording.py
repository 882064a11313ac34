"""Records a program as users do, with ``tracekit capture``, and collects what the program knows of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracekit.errors import CaptureError
from tracekit.nsight import nsys
from tracekit.proof.machine import last_line, package_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

#: The variables of ``programs/observed.py``, which imports torch.
_TRUTH_FOLDER, _RANGES = "TRACEKIT_PROOF_TRUTH", "TRACEKIT_PROOF_RANGES"
#: The report, torch.profiler's own trace beside it, and the folder with what programs knew of themselves.
STEM = "run"
REPORT, TRACE, TRUTH = f"{STEM}.sqlite", f"{STEM}.json.gz", "truth"
_LOG = "recording.log"


def record(
    folder: Path, arguments: Sequence[str], *, trailing: Sequence[str] = (), name: str = REPORT, ranges: bool = False
) -> None:
    """Runs ``tracekit capture``; its report goes into the folder.

    Args:
        folder: Where everything goes.
        arguments: Target and options.
        trailing: What follows after ``--``.
        name: Name of the report.
        ranges: Whether the program's own hooks are ranges of torch.profiler, too.

    Raises:
        CaptureError: If it fails.
    """
    command = [sys.executable, "-m", "tracekit", "capture", *arguments, "-o", str(folder / name)]
    run(folder, [*command, *(["--", *trailing] if trailing else [])], ranges=ranges)


def run(folder: Path, command: Sequence[str], *, ranges: bool = False) -> None:
    """Runs a command whose processes leave what they know of themselves in the folder.

    Raises:
        CaptureError: If it fails.
    """
    known = environment(folder, ranges=ranges)
    with (folder / _LOG).open("ab") as log:
        code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=known)
    if code:
        name = " ".join(command[1:4])
        raise CaptureError(f"python {name} ended with exit code {code}: {last_line(folder / _LOG)}")


def run_under_nsys(folder: Path, command: Sequence[str], options: Mapping[str, str] = MappingProxyType({})) -> None:
    """Runs a command that marks itself, under nsys, without a window: everything is recorded.

    Args:
        folder: Where the report goes, and what the program knows of itself.
        command: What to run.
        options: Options of ``nsys profile`` in place of tracekit's own.

    Raises:
        CaptureError: If it fails, or nothing is exported.
    """
    if (tool := nsys.find()) is None:
        raise CaptureError(f"nsys was not found; {nsys.INSTALL}")
    report = folder / REPORT
    recorded = tool.record(command, report, environment=environment(folder), options=options)
    if recorded.exit_code or not report.exists():
        reason = "; ".join(recorded.warnings) or "no report was exported"
        raise CaptureError(f"{tool.path} ended with exit code {recorded.exit_code}: {reason}")


def environment(folder: Path, *, ranges: bool = False) -> dict[str, str]:
    """The environment of a program that leaves its truth in the folder."""
    (folder / TRUTH).mkdir(exist_ok=True)
    truth = {_TRUTH_FOLDER: str((folder / TRUTH).absolute()), _RANGES: str(int(ranges))}
    return {**os.environ, **package_path(), **truth}


def truths(folder: Path) -> list[dict[str, Any]]:
    """What the processes of the recorded program knew of themselves.

    Raises:
        CaptureError: If there was none.
    """
    files = sorted((folder / TRUTH).glob("*.json"))
    if not files:
        raise CaptureError("the recorded program left no truth to compare with, so it did not end by itself")
    return [json.loads(file.read_text("utf-8")) for file in files]


def truth(folder: Path) -> dict[str, Any]:
    """What the one process of the recorded program knew.

    Raises:
        CaptureError: If there were several.
    """
    known = truths(folder)
    if len(known) > 1:
        raise CaptureError(f"{len(known)} processes left their truth; expected one")
    return known[0]


def rows_of(folder: Path, table: str) -> int:
    """How many rows a table of the report has."""
    rows: int = dataset(folder).table(table).num_rows
    return rows


def dataset(folder: Path, name: str = REPORT) -> Dataset:
    """The report's tables.

    Raises:
        ReportError: If it cannot be read.
    """
    from tracekit.pipeline.parsing import parse  # noqa: PLC0415 - takes half a second, which not every process needs

    return parse(folder / name, force=True)
