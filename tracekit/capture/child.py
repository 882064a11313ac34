"""The process that nsys profiles: runs a target with markers, and tells its parent what came of it."""

from __future__ import annotations

import json
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
from tracekit.capture.run import Settings, run
from tracekit.errors import TracekitError, UsageError
from tracekit.nsys import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable


class NvtxWindow:
    """A range that tells nsys what to record; nsys takes no second one."""

    def __init__(self) -> None:
        self._end: Callable[[], object] | None = None
        self._over = False

    def open(self) -> None:
        """Begins to record, unless that has begun."""
        if self._end is None and not self._over:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._end = nvtx_emitter().start(WINDOW)

    def close(self) -> None:
        """Ends it, once the GPU has done what was asked of it."""
        if self._end is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._end()
            self._end, self._over = None, True


def main(argument: str) -> int:
    """Runs what the parent asks for; the exit code is the target's."""
    spec, arguments, settings, told = json.loads(argument)
    settings["skip"] = tuple(settings["skip"])
    if settings["compiling"] is not None:
        settings["compiling"] = Compiling(**settings["compiling"])
    wanted = Settings(**settings)
    operators = operator_markers() if wanted.ops else nullcontext()
    said: dict[str, object] = {}
    window = NvtxWindow()
    try:
        nvtx_emitter()  # says what to install where nvtx is missing, before a stranger's code runs
        # A graph that the warm-up captures must be recorded from there: its nodes need their markers.
        with told_of_graphs(window.open):
            said["figures"] = run(target.load(spec, tuple(arguments)), wanted, window, operators)
    except TracekitError as error:
        said |= {"problem": str(error), "usage": isinstance(error, UsageError)}
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        Path(told).write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
