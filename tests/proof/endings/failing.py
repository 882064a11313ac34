"""A check that finds what is wrong."""

from __future__ import annotations

from tracekit.proof.base import Evidence

NAME = "failing"
ABOUT = "what was promised holds"
LIMIT_S = 60


def missing(_machine):
    return None


def record(folder, _machine):
    (folder / "run.sqlite").write_text("recorded")


def judge(_folder, _machine):
    return Evidence(["one is wrong\nand wide", "two are wrong"])
