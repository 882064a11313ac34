"""Reports in nsys's own formats, ``.nsys-rep``, ``.qdrep`` and ``.qdstrm``: exported into a cache, then read.

``report`` reads one; ``cache`` keeps exports; ``writer`` finds out which version wrote a report.
"""

from __future__ import annotations

from tracekit.readers.nsight_native.report import NAME, read, recognises

__all__ = ["NAME", "read", "recognises"]
