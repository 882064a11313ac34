"""Shows on a machine that tracekit works there: records small models and compares the reports with what is true.

:func:`prove` runs ``PROGRAMS`` and leaves reports and a summary as JSON.
"""

from tracekit.selftest.programs import PROGRAMS, Program
from tracekit.selftest.running import Summary, prove

__all__ = ["PROGRAMS", "Program", "Summary", "prove"]
