"""The processes of a self-test: ``python -m tracekit.selftest hear FILE``, ``… run TABLE PROGRAM FOLDER``."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tracekit.selftest.machine import hear
from tracekit.selftest.running import run_program


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    if sys.argv[1] == "hear":
        hear(Path(sys.argv[2]))
    else:
        run_program(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
