"""Modules of work that nobody marked, from a marked run of the same model (``tracekit parse --like``).

``reference()`` reads the marked run; ``aligned()`` gives work without a module that of its certain counterpart there.
"""

from tracekit.unmarked.counterparts import aligned
from tracekit.unmarked.reference import Reference, reference

__all__ = ["Reference", "aligned", "reference"]
