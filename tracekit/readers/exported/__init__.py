"""Timelines that ``tracekit export`` wrote as ``chrome`` or ``perfetto``, into the recording they were made of."""

from __future__ import annotations

from tracekit.readers.exported.report import NAME, read, recognises

__all__ = ["NAME", "read", "recognises"]
