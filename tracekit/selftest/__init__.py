"""Shows on a machine that tracekit works there: records small models and compares the reports with what is true.

:func:`prove` runs ``PROGRAMS`` and leaves reports, a summary as JSON and a page.
"""

from tracekit.selftest.programs import PROGRAMS, Program
from tracekit.selftest.running import prove
from tracekit.selftest.summary import Summary

__all__ = ["PROGRAMS", "Program", "Summary", "prove"]
