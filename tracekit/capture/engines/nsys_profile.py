"""The engine ``nsys``: runs the target in a new process under NVIDIA's nsys; a whole script as the command it is.

:func:`main` is what that process does: it runs the target with markers, and reports the outcome to its parent.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from tracekit.capture.arrivals import SentCalls, add_arrivals
from tracekit.capture.emit import epoch, nvtx_emitter
from tracekit.capture.ending import Ending
from tracekit.capture.processes.command import record_with_nsys
from tracekit.capture.processes.recording import others_refused
from tracekit.capture.program import Settings
from tracekit.capture.run import Job, Outcome, Target, ended, load, run
from tracekit.capture.schedule import attempt, on_graph_capture, wait_for_gpu
from tracekit.capture.steps import operator_markers
from tracekit.errors import CaptureError, TracekitError, UsageError
from tracekit.nsight import nsys
from tracekit.nsight.nsys import WINDOW
from tracekit.storage.local_copies import temp_dir

NAME = "nsys"
#: What ``tracekit doctor`` emits under nsys: a range pushed as our markers are, and one as the nvtx package does.
MARKER, PLAIN_RANGE = "tracekit doctor: a marker", "tracekit doctor: a range"


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
        command = [sys.executable, "-c", f"import sys; from {__name__} import main; sys.exit(main())", argument]
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


def main() -> int:
    """Runs the target that the parent asks for, in the process's argument. Returns the target's exit code."""
    spec, arguments, values, outcome_file = json.loads(sys.argv[1])
    path, settings, process = Path(outcome_file), Settings.of_json(values), os.getpid()
    outcome: dict[str, Any] = {"warnings": [], "figures": {}}
    code = 1  # Python's own exit code for exceptions that are not caught below

    def finish() -> None:
        if os.getpid() == process:  # processes that the target forked do not report
            path.write_text(json.dumps(outcome))

    try:
        loaded = partial(load, spec, tuple(arguments))
        code, problem = ended(lambda: _run_in_window(loaded, settings, path.parent, outcome, leave=finish))
        if problem is not None:
            outcome |= {"problem": str(problem), "usage": isinstance(problem, UsageError)}
    finally:
        outcome["exit_code"] = code
        finish()
    return code


def _run_in_window(
    loaded: Callable[[], Target], settings: Settings, folder: Path, outcome: dict[str, Any], leave: Callable[[], None]
) -> None:
    window = _NvtxWindow(folder, outcome["warnings"])

    def finish() -> None:
        window.leave(lambda _warnings: {})
        leave()

    window.opens = Ending(folder, finish, window.forked).watch_termination
    operators = operator_markers() if settings.ops else nullcontext()
    # If the warm-up captures a graph, recording starts there: the graph's nodes need the markers around them.
    with others_refused(folder, forks=False), on_graph_capture(window.open), window.marks():
        run(loaded(), settings, window, operators, outcome["figures"])


class _NvtxWindow(SentCalls):
    """Sent calls inside the range that makes nsys record. nsys accepts only one."""

    def __init__(self, folder: Path, warnings: list[str]) -> None:
        super().__init__(folder)
        self._warnings = warnings
        self._end: Callable[[], object] | None = None
        self._closed = False

    @override
    def open(self) -> None:
        if self._end is None and not self._closed:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._end = nvtx_emitter().start(WINDOW)
            super().open()
            epoch.begin()

    @override
    def close(self) -> None:
        """Waits for the GPU and stops recording. If that fails, nsys records until the process ends."""
        super().close()
        if self._end is not None:
            end, self._end, self._closed = self._end, None, True
            wait_for_gpu(self._warnings)
            attempt(end, "nsys could not be told to stop recording, so it went on", self._warnings)

    @override
    def forked(self) -> None:
        """Leaves the range to the process that has opened it."""
        super().forked()
        self._end, self._closed = None, True


def emit_a_sample(problem_file: str) -> None:
    """Emits a marker, a window and a plain range. If the nvtx package refuses one, the file gets one line of why."""
    try:
        emitter = nvtx_emitter()
        end = emitter.start(WINDOW)
        emitter.opener(MARKER)()
        emitter.close()
        end()
        import nvtx  # noqa: PLC0415 - if it is missing, the emitter has already reported what to do

        nvtx.push_range(PLAIN_RANGE)
        nvtx.pop_range()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        reason = " ".join(str(error).split())
        Path(problem_file).write_text(f"{type(error).__name__}: {reason}", "utf-8")
