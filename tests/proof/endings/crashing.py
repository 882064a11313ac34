"""A check whose process crashes, as CUDA may."""

from __future__ import annotations

import os
import signal

from tracekit.proof.base import Evidence

NAME = "crashing"
ABOUT = "what was promised holds"
LIMIT_S = 60


def missing(_machine):
    return None


def record(folder, _machine):
    os.kill(os.getpid(), signal.SIGSEGV)


def judge(_folder, _machine):
    return Evidence([])
