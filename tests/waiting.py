"""Waits for what a test needs, however busy the machine is."""

import subprocess
import time
from collections.abc import Callable
from typing import Any

#: Nothing that works takes as long on any machine.
PATIENCE_S = 600


def wait_until(true: Callable[[], object], running: subprocess.Popen[Any] | None = None) -> None:
    """Returns once it is true; fails where that takes too long, or the process that makes it true has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert running is None or running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
