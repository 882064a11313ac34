"""The processes of a self-test: ``python -m tracekit.selftest hear FILE``, ``… run TABLE PROGRAM FOLDER``."""

import signal
import sys
from pathlib import Path

from tracekit.selftest.machine import hear
from tracekit.selftest.running import run_program

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if sys.argv[1] == "hear":
        hear(Path(sys.argv[2]))
    else:
        run_program(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
