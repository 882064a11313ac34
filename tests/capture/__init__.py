"""Tests of what marks a running model; all of them need torch."""

from __future__ import annotations

from tests.needs import require

require("torch")
