"""A check with a mistake in it."""

from __future__ import annotations

from tracekit.proof.base import Evidence

NAME = "raising"
ABOUT = "what was promised holds"
LIMIT_S = 60


def missing(_machine):
    return None


def record(folder, _machine):
    raise ZeroDivisionError("a mistake")


def judge(_folder, _machine):
    return Evidence([])
