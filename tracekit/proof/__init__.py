"""Proves on a machine that tracekit works there: records, and compares with truth that each check makes itself.

:func:`prove` runs checks and leaves reports, a summary as JSON and a page. ``CHECKS`` are those for users.
"""

from __future__ import annotations

from tracekit.proof.checks import CHECKS
from tracekit.proof.proving import Watchers, prove
from tracekit.proof.summary import Summary

__all__ = ["CHECKS", "Summary", "Watchers", "prove"]
