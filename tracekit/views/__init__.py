"""Answers made to be looked at: in the terminal, and later in a browser or another viewer. They see only the dataset."""

from __future__ import annotations
