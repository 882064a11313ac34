"""The process by which the doctor tries nvtx under nsys: a marker, a window, and a range as others push them."""

from __future__ import annotations

import sys
from pathlib import Path

from tracekit.capture.emit import nvtx_emitter
from tracekit.nsight.nsys import WINDOW

#: What is pushed as markers are, and as programs do that use the nvtx package themselves.
MARKER, OWN = "tracekit doctor: a marker", "tracekit doctor: a range"


def main(told: str) -> int:
    """Emits one of each; what the package does not take goes to a file, in one line."""
    try:
        _as_capture()
        _as_others()
    except Exception as error:  # noqa: BLE001 - what a release does that nobody knows yet
        said = " ".join(str(error).split())
        Path(told).write_text(f"{type(error).__name__}: {said}", "utf-8")
        return 1
    return 0


def _as_capture() -> None:
    emitter = nvtx_emitter()
    end = emitter.start(WINDOW)
    emitter.opener(MARKER)()
    emitter.close()
    end()


def _as_others() -> None:
    import nvtx  # noqa: PLC0415 - the emitter has said what to do if it is missing

    nvtx.push_range(OWN)
    nvtx.pop_range()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
