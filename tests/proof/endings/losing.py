"""A check whose first recording nsys loses: it fails, or its report is empty."""

from __future__ import annotations

from tests.trace_lines import report
from tracekit.errors import CaptureError
from tracekit.nsight.nsys import NATIVE, NOTHING
from tracekit.proof import recording
from tracekit.proof.base import Evidence

NAME = "losing"
ABOUT = "what was promised holds"
LIMIT_S = 60
RANGE = "range 1 0 10 a"


def missing(_machine):
    return None


def record(folder, machine):
    (folder / recording.TRUTH).mkdir()
    first = not (folder / "first").exists()
    (folder / "first").touch()
    if first and machine.nsys == "failing":
        raise CaptureError(f"{NOTHING}: nsys printed: SystemException")
    (folder / recording.REPORT).with_suffix(NATIVE).touch(exist_ok=False)
    report(folder / recording.REPORT, "" if first else RANGE)


def judge(folder, _machine):
    return Evidence([] if recording.rows_of(folder, "ranges") == 1 else ["the range is lost"])
