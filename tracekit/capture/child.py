"""The process that nsys profiles: runs a target with markers, and reports the outcome to its parent."""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from tracekit.capture.arrivals import SentCalls
from tracekit.capture.emit import epoch, nvtx_emitter
from tracekit.capture.ending import Ending
from tracekit.capture.program import Settings
from tracekit.capture.run import exit_code, load, run
from tracekit.capture.schedule import attempt, on_graph_capture, wait_for_gpu
from tracekit.capture.steps import operator_markers
from tracekit.capture.writing import say
from tracekit.errors import CaptureError, TracekitError, UsageError
from tracekit.nsight.nsys import WINDOW


class NvtxWindow:
    """The range that makes nsys record. nsys accepts only one."""

    def __init__(self, folder: Path) -> None:
        self.warnings: list[str] = []
        self.sent = SentCalls(folder)
        self._end: Callable[[], object] | None = None
        self._closed = False

    def open(self) -> None:
        """Begins to record, unless recording has begun or ended already."""
        if self._end is None and not self._closed:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._end = _started()
            self.sent.open()
            epoch.begin()

    def drop(self) -> None:
        """Records on: a session of nsys begins only once."""

    def close(self) -> None:
        """Waits for the GPU and stops recording. If that fails, nsys records until the process ends."""
        if self._end is not None:
            end, self._end, self._closed = self._end, None, True
            self.sent.close()
            wait_for_gpu(self.warnings)
            attempt(end, "nsys could not be told to stop recording, so it went on", self.warnings)

    def forked(self) -> None:
        """Leaves the range to the process that has opened it."""
        self._end, self._closed = None, True
        self.sent.forked()


def _started() -> Callable[[], object]:
    try:
        return nvtx_emitter().start(WINDOW)
    except Exception as error:  # an unknown release of nvtx may raise anything
        message = f"the nvtx package cannot start a range ({error}); run tracekit doctor"
        raise CaptureError(message) from error


def main(argument: str) -> int:
    """Runs the target that the parent asks for. Returns the target's exit code."""
    spec, arguments, settings, outcome_file = json.loads(argument)
    window = NvtxWindow(Path(outcome_file).parent)
    figures: dict[str, int] = {}
    outcome: dict[str, object] = {"warnings": window.warnings, "figures": figures}
    code, process = 1, os.getpid()  # 1 is Python's own exit code for exceptions that are not caught below

    def finish() -> None:
        window.close()
        window.sent.leave(lambda _warnings: {})
        if os.getpid() == process:  # processes that the target forked do not report
            _write_outcome(Path(outcome_file), outcome)

    ending = Ending(Path(outcome_file).parent, finish, window.forked)
    window.sent.opens = ending.watch_termination
    try:
        # If the warm-up captures a graph, recording starts there: the graph's nodes need the markers around them.
        with on_graph_capture(window.open), window.sent.marks():
            operators = operator_markers() if settings["ops"] else nullcontext()
            run(load(spec, tuple(arguments)), Settings.of_json(settings), window, operators, figures)
        code = 0
    except TracekitError as error:
        outcome |= {"problem": str(error), "usage": isinstance(error, UsageError)}
        code = error.exit_code
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as leaving:
        code = exit_code(leaving)
    finally:
        outcome["exit_code"] = code
        ending.finish()
    return code


def _write_outcome(path: Path, outcome: dict[str, object]) -> None:
    try:
        path.write_text(json.dumps(outcome))
    except OSError as error:
        say(f"warning: {path}: {error.strerror}; the cost of recording is not known")  # no other way to the parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
