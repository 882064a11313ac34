"""The processes of a proof: ``python -m tracekit.proof examine FILE``, ``… hear FILE``, ``… check MODULE FOLDER``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tracekit.proof.machine import examine, hear
from tracekit.proof.one import run_check

if TYPE_CHECKING:
    from types import FrameType


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    """Exits by an exception, so that what was started is stopped, too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    if sys.argv[1] == "examine":
        examine(Path(sys.argv[2]))
    elif sys.argv[1] == "hear":
        hear(Path(sys.argv[2]))
    else:
        run_check(sys.argv[2], Path(sys.argv[3]))
