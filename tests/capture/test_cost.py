"""Markers are cheap: measured beside texts made for every call, so that a busy machine slows both."""

from __future__ import annotations

import pytest

from tests.benchmarks.marker_cost import measured

pytestmark = pytest.mark.torch


def test_markers_cost_a_fraction_of_texts_made_for_every_call() -> None:
    costs = measured(rounds=6, repeats=10)
    # The benchmark says a quarter on a quiet machine.
    assert costs["ours"] < costs["text per call"] / 2
