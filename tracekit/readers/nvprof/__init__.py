"""SQLite files of nvprof and the Visual Profiler: ``report`` recognises and reads one, with one module per part."""

from __future__ import annotations

from tracekit.readers.nvprof.report import NAME, read, recognises

__all__ = ["NAME", "read", "recognises"]
