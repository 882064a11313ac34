"""Chrome traces of torch.profiler (Kineto), 2020 to today, into a recording."""

from __future__ import annotations

from tracekit.readers.kineto.report import NAME, read, recognises

__all__ = ["NAME", "read", "recognises"]
