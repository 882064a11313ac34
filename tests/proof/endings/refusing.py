"""A check that cannot record."""

from __future__ import annotations

from tracekit.errors import CaptureError
from tracekit.proof.base import Evidence

NAME = "refusing"
ABOUT = "what was promised holds"
LIMIT_S = 60


def missing(_machine):
    return None


def record(folder, _machine):
    raise CaptureError("nothing was recorded; try again")


def judge(_folder, _machine):
    return Evidence([])
