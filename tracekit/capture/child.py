"""The process that nsys profiles: runs a target with markers, and tells its parent what came of it."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tracekit.capture import target
from tracekit.capture.compiling import Compiling
from tracekit.capture.emit import nvtx_emitter
from tracekit.capture.graphs import told_of_graphs
from tracekit.capture.operators import operator_markers
from tracekit.capture.run import Settings, exit_code, run
from tracekit.capture.schedule import tried, wait_for_gpu
from tracekit.errors import CaptureError, TracekitError, UsageError
from tracekit.nsight.nsys import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable


class NvtxWindow:
    """A range that tells nsys what to record; nsys takes no second one.

    Attributes:
        warnings: What went wrong at its end.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._end: Callable[[], object] | None = None
        self._over = False

    def open(self) -> None:
        """Begins to record, unless that has begun.

        Raises:
            CaptureError: If the nvtx package cannot start a range.
        """
        if self._end is None and not self._over:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._end = _started()

    def close(self) -> None:
        """Ends it, once the GPU has done what was asked of it; without an end it lasts as long as the process."""
        if self._end is not None:
            end, self._end, self._over = self._end, None, True
            wait_for_gpu(self.warnings)
            tried(end, "the end of the recording was not told to nsys, it went on", self.warnings)


def _started() -> Callable[[], object]:
    try:
        return nvtx_emitter().start(WINDOW)
    except Exception as error:  # a release of the package that is made otherwise
        message = f"the nvtx package cannot start a range ({error}); tracekit doctor says more"
        raise CaptureError(message) from error


def main(argument: str) -> int:
    """Runs what the parent asks for; the exit code is the target's."""
    spec, arguments, settings, told = json.loads(argument)
    settings["skip"] = tuple(settings["skip"])
    if settings["compiling"] is not None:
        settings["compiling"] = Compiling(**settings["compiling"])
    wanted = Settings(**settings)
    operators = operator_markers() if wanted.ops else nullcontext()
    window = NvtxWindow()
    said: dict[str, object] = {"warnings": window.warnings}
    code, process = 1, os.getpid()  # Python's own code for what is not caught below
    try:
        nvtx_emitter()  # says what to install where nvtx is missing, before a stranger's code runs
        # A graph that the warm-up captures must be recorded from there: its nodes need their markers.
        with told_of_graphs(window.open):
            said["figures"] = run(target.load(spec, tuple(arguments)), wanted, window, operators)
        code = 0
    except TracekitError as error:
        said |= {"problem": str(error), "usage": isinstance(error, UsageError)}
        code = error.exit_code
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as leaving:
        code = exit_code(leaving)
    finally:
        if os.getpid() == process:  # a process that the target forked does not speak for it
            _tell(Path(told), said | {"exit_code": code})
    return code


def _tell(told: Path, said: dict[str, object]) -> None:
    try:
        told.write_text(json.dumps(said))
    except OSError as error:
        line = f"tracekit: warning: what recording cost is not known: {told}: {error.strerror}"
        print(line, file=sys.stderr)  # noqa: T201 - the parent does not hear of it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
