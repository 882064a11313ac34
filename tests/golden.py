"""Expected rows of a table written as text, so that they stand beside the trace that they come from."""

import re
from collections.abc import Callable

import pandas as pd

from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records

#: What the fixture ``parsed`` gives: it parses the lines of a trace.
Parse = Callable[..., Dataset]
#: What the fixture ``golden`` gives: it parses lines and compares tables with the rows below them.
Golden = Callable[[str], Dataset]


def expect(dataset: Dataset, table: str) -> Callable[[str], None]:
    """What compares a table's rows, in their order, with lines of text: ``expect(dataset, "calls")("...")``.

    The first line names the columns, then there is a line for every row. Cells are two spaces or more apart; null is
    ``-``.
    """

    def compare(expected: str) -> None:
        names, rows = _lines(expected)
        found = dataset.table(table, names).to_pylist()
        assert [[_cell(row[name]) for name in names] for row in found] == rows

    return compare


def losses(dataset: Dataset) -> dict[str, int]:
    rows = dataset.table("coverage").to_pylist()
    return {row["cause"]: row["count"] for row in rows if "losses" in row["what"]}


def expect_frame(frame: pd.DataFrame) -> Callable[[str], None]:
    """As :func:`expect`, of a frame."""

    def compare(expected: str) -> None:
        names, rows = _lines(expected)
        found = records(frame)
        assert [[_rounded(row[name]) for name in names] for row in found] == rows

    return compare


def _rounded(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _cell(value)


def _lines(expected: str) -> tuple[list[str], list[list[str]]]:
    lines = [re.split(r"\s{2,}", line.strip()) for line in expected.splitlines() if line.strip()]
    return lines[0], lines[1:]


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
