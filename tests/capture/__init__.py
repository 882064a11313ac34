"""Tests of what marks a running model; all of them need torch."""

from tests.needs import require

require("torch")
