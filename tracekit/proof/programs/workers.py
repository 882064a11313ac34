"""Two processes at once, each of which calls the model: the first twice, the second three times."""

from __future__ import annotations

import subprocess
import sys

from tracekit.proof.programs import script
from tracekit.proof.programs.plans import WORKERS


def main() -> int:
    """Starts both and waits for them. Returns the larger of their exit codes."""
    running = [subprocess.Popen([sys.executable, script.__file__, str(calls)]) for calls in WORKERS]
    return max(abs(process.wait()) for process in running)


if __name__ == "__main__":
    sys.exit(main())
