"""Expected rows of a table written as text, so that they stand beside the trace that they come from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.dataset import Dataset


def check(dataset: Dataset, table: str, expected: str) -> None:
    """Compares a table's rows, in their order, with lines of text.

    Args:
        dataset: The dataset.
        table: Name of the table.
        expected: A line that names the columns, then a line for every row. Cells are two spaces or more apart; null
            is ``-``.
    """
    lines = [re.split(r"\s{2,}", line.strip()) for line in expected.splitlines() if line.strip()]
    (names, *rows) = lines
    found = dataset.table(table, names).to_pylist()
    assert [[_cell(row[name]) for name in names] for row in found] == rows


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
