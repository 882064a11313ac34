"""Makes a process that kills itself or another one wait until what that one recorded is written.

Servers end their workers this way, vLLM's among them: nothing tells a process that it is killed.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from tracekit.capture.processes.ending import put_in_os
from tracekit.capture.processes.pieces import lives, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: How long a process may take to write what it recorded, as soon as another one wants to kill it.
_PATIENCE_S = 60


def kill_when_written(folder: Path, finish: Callable[[], object]) -> None:
    """From now on, this process asks a process that records to end before it kills it, and waits until it has written.

    Args:
        folder: Where processes leave what they record.
        finish: Writes what this process recorded.
    """
    kill = os.kill

    def patient_kill(pid: int, number: int, /) -> None:
        if number == signal.SIGKILL and pid == os.getpid():
            finish()
        elif number == signal.SIGKILL and pid in unfinished(folder):
            kill(pid, signal.SIGTERM)
            end = time.monotonic() + _PATIENCE_S
            while pid in unfinished(folder) and lives(pid) and time.monotonic() < end:
                time.sleep(0.05)
        kill(pid, number)

    put_in_os(patient_kill, kill)
