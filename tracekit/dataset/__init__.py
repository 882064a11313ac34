"""A dataset: a folder of Parquet tables and a manifest.

``opening`` reads it, ``writing`` writes one for a trace, ``joining`` makes one of several, and ``union`` finds the
modules that they share. Knows no reports.
"""

from tracekit.dataset.opening import Dataset, load

__all__ = ["Dataset", "load"]
