"""The process that nsys profiles: runs a target with markers, and reports the outcome to its parent."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tracekit.capture.arrivals import SentCalls
from tracekit.capture.emit import epoch, nvtx_emitter
from tracekit.capture.ending import Ending
from tracekit.capture.processes.recording import others_refused
from tracekit.capture.program import Settings
from tracekit.capture.run import Target, ended, load, run
from tracekit.capture.schedule import attempt, on_graph_capture, wait_for_gpu
from tracekit.capture.steps import operator_markers
from tracekit.errors import UsageError
from tracekit.nsight.nsys import WINDOW


class NvtxWindow:
    """The range that makes nsys record. nsys accepts only one."""

    def __init__(self, folder: Path, warnings: list[str]) -> None:
        self.sent = SentCalls(folder)
        self._warnings = warnings
        self._end: Callable[[], object] | None = None
        self._closed = False

    def open(self) -> None:
        """Begins to record, unless recording has begun or ended already."""
        if self._end is None and not self._closed:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._end = nvtx_emitter().start(WINDOW)
            self.sent.open()
            epoch.begin()

    def drop(self) -> None:
        """Records on: a session of nsys begins only once."""

    def close(self) -> None:
        """Waits for the GPU and stops recording. If that fails, nsys records until the process ends."""
        if self._end is not None:
            end, self._end, self._closed = self._end, None, True
            self.sent.close()
            wait_for_gpu(self._warnings)
            attempt(end, "nsys could not be told to stop recording, so it went on", self._warnings)

    def forked(self) -> None:
        """Leaves the range to the process that has opened it."""
        self._end, self._closed = None, True
        self.sent.forked()


def main(argument: str) -> int:
    """Runs the target that the parent asks for. Returns the target's exit code."""
    spec, arguments, values, outcome_file = json.loads(argument)
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
    window = NvtxWindow(folder, outcome["warnings"])

    def finish() -> None:
        window.close()
        window.sent.leave(lambda _warnings: {})
        leave()

    window.sent.opens = Ending(folder, finish, window.forked).watch_termination
    operators = operator_markers() if settings.ops else nullcontext()
    # If the warm-up captures a graph, recording starts there: the graph's nodes need the markers around them.
    with others_refused(folder, forks=False), on_graph_capture(window.open), window.sent.marks():
        run(loaded(), settings, window, operators, outcome["figures"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
