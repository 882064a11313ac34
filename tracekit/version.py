"""The versions of tracekit, and of the timelines that it exports."""

from __future__ import annotations

__version__ = "0.1.0"

#: What the events of a timeline hold; timelines with another number cannot be parsed. Timelines once had none.
TIMELINE = 1
