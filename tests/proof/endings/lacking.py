"""A check that needs what is not there."""

from __future__ import annotations

from tracekit.proof.base import Evidence

NAME = "lacking"
ABOUT = "what was promised holds"
LIMIT_S = 60


def missing(_machine):
    return "no such thing here"


def record(folder, _machine):
    raise AssertionError


def judge(_folder, _machine):
    return Evidence([])
