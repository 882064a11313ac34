"""Engines: the ways to record a target.

To add an engine: write ``engines/<engine>.py`` with the three names of :class:`~tracekit.capture.engines.Engine`,
add the module to ``ENGINES``, and a recording to ``tests/capture/test_engines.py``.
"""

from __future__ import annotations

from typing import Protocol

import torch

from tracekit.capture.engines import nsys_profile, torch_profiler
from tracekit.capture.run import Job, Outcome
from tracekit.errors import CaptureError, UsageError, did_you_mean


class Engine(Protocol):
    """A module that records targets."""

    #: The name by which the user chooses it.
    NAME: str

    def unavailable(self) -> str | None:
        """Why it cannot record on this machine, in one line; None if it can."""

    def record(self, job: Job, /) -> Outcome:
        """Runs the target and writes the report."""


ENGINES: tuple[Engine, ...] = (nsys_profile, torch_profiler)
AUTO = "auto"


def chosen(name: str = AUTO) -> Engine:
    """The engine of this name. ``auto`` means nsys if both nsys and a GPU are available, else torch."""
    if name == AUTO:
        use_nsys = torch.cuda.is_available() and nsys_profile.unavailable() is None
        return nsys_profile if use_nsys else torch_profiler
    engine = next((engine for engine in ENGINES if name == engine.NAME), None)
    if engine is None:
        names = [AUTO, *(engine.NAME for engine in ENGINES)]
        raise UsageError(f"there is no engine {name}; {did_you_mean(name, names)}")
    if reason := engine.unavailable():
        raise CaptureError(f"the engine {name} cannot record on this machine: {reason}")
    return engine
