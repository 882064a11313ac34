"""Texts for CSV files that no spreadsheet runs as a formula: a traced program chooses its names freely."""

from __future__ import annotations

import re

#: What a spreadsheet may take for a formula. A sign before a number is harmless; an apostrophe is our own prefix.
_CALCULATED = re.compile(r"['=@\t\r\n]|[+-](?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def safe_in_a_sheet(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet would take it for a formula.

    Such texts start with ``=``, ``@``, a tab, a line break or an apostrophe, or with ``+`` or ``-`` without being a
    number. Removing one leading apostrophe restores every text.
    """
    return f"'{text}" if _CALCULATED.match(text) else text
