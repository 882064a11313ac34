"""Answers made to be looked at: in the terminal, and as a page in a browser. They see only the dataset."""

from __future__ import annotations
