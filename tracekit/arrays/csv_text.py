"""Texts of CSV files that no spreadsheet takes for a formula: names in a trace are whatever its program chose."""

from __future__ import annotations

import re

#: What a spreadsheet may calculate. A sign before a number is a number, and an apostrophe is what is put in front.
_CALCULATED = re.compile(r"['=@\t\r\n]|[+-](?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def safe_in_a_sheet(text: str) -> str:
    """The text, with an apostrophe in front where a spreadsheet would take it for a formula.

    That is where it begins with ``=``, ``@``, a tab, the end of a line or an apostrophe, or with ``+`` or ``-`` and is
    no number. A reader gets every text back by taking one leading apostrophe away.
    """
    return f"'{text}" if _CALCULATED.match(text) else text
