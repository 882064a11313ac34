"""Plain ranges as nodes of a hierarchy: which of them, under which names, from when to when."""

from __future__ import annotations

from tracekit.trace.plain.keys import Keyed, keyed_by

__all__ = ["Keyed", "keyed_by"]
