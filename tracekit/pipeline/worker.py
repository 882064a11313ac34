"""The program of one worker: parses one report for :mod:`tracekit.pipeline.processes`.

It writes lines of JSON to its output: a stage with its share; last ``done``, a problem with the report, or the system's
error in writing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tracekit.errors import ReportError
from tracekit.pipeline.one import Wishes, parse_report
from tracekit.storage.locations import location

#: How long a stopped worker may take to remove what it has begun.
_PATIENCE_S = 5


def run(task: dict[str, Any]) -> None:
    """Parses the report of one task."""
    # A worker that is stopped while nsys runs for it stops nsys, too, and removes what that has written.
    signal.signal(signal.SIGTERM, _stopped)
    threading.Thread(target=_end_with_input, daemon=True).start()
    lock = threading.Lock()

    def say(**fields: object) -> None:
        with lock:
            sys.stdout.write(json.dumps(fields) + "\n")
            sys.stdout.flush()

    try:
        parse_report(
            location(task["report"]),
            Path(task["folder"]),
            lambda stage, share: say(stage=stage, share=share),
            Wishes(**task["wishes"] | {"graph_captures": tuple(map(Path, task["wishes"]["graph_captures"]))}),
        )
    except ReportError as error:
        say(problem=error.problem, remedy=error.remedy)
    except OSError as error:
        say(errno=error.errno, strerror=error.strerror or str(error))
    else:
        say(done=True)


def _stopped(*_: object) -> None:
    """Ends this process without a word: where it is just closing a connection, SQLAlchemy would log a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(1)


def _end_with_input() -> None:
    """Ends this process when the one that started it is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE_S)
    os._exit(1)
