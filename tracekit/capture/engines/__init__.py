"""How a target is recorded.

To add an engine: write ``engines/<engine>.py`` with the three names of :class:`~tracekit.capture.engines.base.Engine`,
add the module to ``ENGINES``, and a recording to ``tests/capture/test_engines.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tracekit.capture.engines import nsys_profile, torch_profiler
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from tracekit.capture.engines.base import Engine

ENGINES: tuple[Engine, ...] = (nsys_profile, torch_profiler)
AUTO = "auto"


def chosen(name: str = AUTO) -> Engine:
    """The engine of a name. ``auto`` is nsys where there is one and a GPU for it to see, else torch.

    Raises:
        UsageError: If there is no such engine.
        CaptureError: If it cannot record here.
    """
    if name == AUTO:
        seen = torch.cuda.is_available() and nsys_profile.unavailable() is None
        return nsys_profile if seen else torch_profiler
    found = next((engine for engine in ENGINES if name == engine.NAME), None)
    if found is None:
        names = ", ".join(engine.NAME for engine in ENGINES)
        raise UsageError(f"there is no engine {name!r}; expected {AUTO}, {names}")
    if why := found.unavailable():
        raise CaptureError(f"the engine {name} cannot record here: {why}")
    return found
