"""SQLite exports of Nsight Systems, 2020.3 to 2026: ``report`` recognises and reads one, with one module per part."""

from __future__ import annotations

from tracekit.readers.nsight_sqlite.report import NAME, read, recognises

__all__ = ["NAME", "read", "recognises"]
