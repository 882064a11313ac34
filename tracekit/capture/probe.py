"""The process with which ``tracekit doctor`` tests nvtx under nsys: it emits a marker, a window, and a plain range."""

import sys
from pathlib import Path

from tracekit.capture.emit import nvtx_emitter
from tracekit.nsight.nsys import WINDOW

#: Text of a range pushed as our markers are, and of one pushed with the nvtx package's own functions.
MARKER, OWN = "tracekit doctor: a marker", "tracekit doctor: a range"


def main(problem_file: str) -> int:
    """Emits one of each. If the nvtx package refuses one, writes the reason to the file, in one line."""
    try:
        emitter = nvtx_emitter()
        end = emitter.start(WINDOW)
        emitter.opener(MARKER)()
        emitter.close()
        end()
        import nvtx  # noqa: PLC0415 - if it is missing, the emitter has already reported what to do

        nvtx.push_range(OWN)
        nvtx.pop_range()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        reason = " ".join(str(error).split())
        Path(problem_file).write_text(f"{type(error).__name__}: {reason}", "utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
