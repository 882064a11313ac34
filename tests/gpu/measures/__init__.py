"""Measures: checks whose figures matter more than their verdicts.

To add a measure: write ``measures/<measure>.py`` with the six names of a check (``tracekit/proof/base.py``), add it to
``MEASURES``, a row to ``tests/gpu/README.md`` and a group in ``tests/proof/proofs.py``, and a test that breaks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gpu.measures import clock_error, marker_cost, replay_speed, roofline

if TYPE_CHECKING:
    from tracekit.proof.base import Check

MEASURES: tuple[Check, ...] = (marker_cost, replay_speed, roofline, clock_error)
