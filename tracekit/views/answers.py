"""Answers of analyses: the rows asked for, as a table in the terminal, as JSON or as CSV."""

from __future__ import annotations

import csv
import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tracekit.arrays.csv_text import safe_in_a_sheet
from tracekit.errors import UsageError
from tracekit.views.wording import (
    ON_CPU,
    ON_GPU,
    duration,
    flops,
    percent,
    plain,
    records,
    rounded,
    size,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tracekit.views.wording import Nouns

_ROWS = 30
_NUMBERS = ("_id", "pid", "rank", "device", "index")
#: A column of names is folded before it gets narrower.
_NARROWEST = 24
#: No column of texts is narrower, whatever is in it.
_LEAST = 8
_END = "\r\n"
_TEXTS = (str, list, dict, bool)
_SHARES = ("share", "spread")
_GAP = 2
_RATES = {
    "tflops_per_s": "TFLOP/s",
    "gb_per_s": "GB/s",
    "flops_per_byte": "FLOP/byte",
    "peak_tflops_per_s": "peak TFLOP/s",
    "peak_gb_per_s": "peak GB/s",
    "inclusive_tflops_per_s": "inclusive TFLOP/s",
}


class Choice(NamedTuple):
    """Which rows are wanted, and in which order.

    Attributes:
        depth: Levels below the first module.
        min_share: Least ``share``, from 0 to 1.
        sort: A column: numbers from the largest, words from A; what is missing comes last.
        top: At most so many rows.
    """

    depth: int | None = None
    min_share: float | None = None
    sort: str | None = None
    top: int | None = None


def chosen(name: str, frame: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """The rows that are wanted of an analysis' answer.

    Raises:
        UsageError: If it lacks a column that the choice needs.
    """
    if choice.depth is not None:
        frame = frame[_column(name, frame, "depth") <= choice.depth]
    if choice.min_share is not None:
        frame = frame[_column(name, frame, "share") >= choice.min_share]
    if choice.sort is not None:
        by = _column(name, frame, choice.sort)
        if any(isinstance(value, list | dict) for value in by):
            raise UsageError(f"{name} cannot be sorted by {choice.sort}: it holds lists")
        down = pd.api.types.is_numeric_dtype(by)
        frame = frame.sort_values(str(by.name), ascending=not down, kind="stable")
    return frame.head(choice.top) if choice.top is not None else frame


def _column(name: str, frame: pd.DataFrame, column: str) -> pd.Series:
    return frame[named(name, frame, column)]


def named(name: str, frame: pd.DataFrame, column: str) -> str:
    """The column that is meant, also if it is called as the table in the terminal heads it: ``gpu time``.

    Raises:
        UsageError: If there is none.
    """
    if column in frame.columns:
        return column
    for one in map(str, frame.columns):
        if column in (_heading(one, words) for words in (ON_GPU, ON_CPU)):
            return one
    near = get_close_matches(column.replace(" ", "_"), frame.columns, 1)
    said = f"did you mean {near[0]}? It has" if near else "it has"
    raise UsageError(f"{name} has no column {column}; {said} {', '.join(frame.columns)}")


def as_json(frame: pd.DataFrame) -> str:
    """A list of rows; what is missing is null."""
    return json.dumps(records(frame), indent=1, ensure_ascii=False)


def as_csv(frame: pd.DataFrame) -> str:
    """A line of names and one for each row; what is missing is empty, all but texts is as in JSON.

    Texts that a spreadsheet would take for a formula get an apostrophe in front, see :func:`safe_in_a_sheet`.
    """
    lines = _Lines()
    # A cell is quoted if it holds a letter of the line's end: a carriage return shall be.
    writer = csv.writer(lines, lineterminator=_END)
    writer.writerow(frame.columns)
    writer.writerows([_csv_cell(value) for value in row.values()] for row in records(frame))
    return "".join(lines)


class _Lines(list[str]):
    def write(self, line: str) -> None:
        self.append(line.removesuffix(_END) + "\n")


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return safe_in_a_sheet(value)
    return json.dumps(value, ensure_ascii=False)


def as_text(frame: pd.DataFrame, words: Nouns, width: int, choice: Choice) -> RenderableType:
    """The first rows (or as many as are wanted), with as many of the columns, from the left, as ``width`` letters hold.

    The column that they are sorted by is there in any case, after the first one.
    """
    if frame.empty:
        return Text("nothing of that kind is in this dataset")
    shown = frame if choice.top is not None else frame.head(_ROWS)
    if choice.sort is not None:
        first, by = str(shown.columns[0]), named("", shown, choice.sort)
        shown = shown[list(dict.fromkeys([first, by, *shown.columns]))]
    rows = records(shown)
    columns = {name: [_cell(name, row[name]) for row in rows] for name in shown.columns}
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    texts = {name for name in columns if any(isinstance(row[name], _TEXTS) for row in rows)}
    fitting = _fitting(columns, texts, words, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in fitting:
        if name in texts:
            table.add_column(_heading(name, words), overflow="fold", min_width=_LEAST)
        else:
            table.add_column(_heading(name, words), justify="right", no_wrap=True)
    for cells in zip(*(columns[name] for name in fitting), strict=True):
        table.add_row(*map(Text, cells))
    table.caption = _caption(len(frame) - len(shown), [n for n in columns if n not in fitting])
    table.caption_justify = "left"
    return table


def _fitting(columns: dict[str, list[str]], texts: set[str], words: Nouns, width: int) -> list[str]:
    """The columns that fit side by side, texts folded if need be, figures never; the first one always does."""
    fitting: list[str] = []
    used = _GAP
    for name, cells in columns.items():
        widest = max(len(_heading(name, words)), *map(len, cells))
        used += _GAP + (max(min(widest, _NARROWEST), _LEAST) if name in texts else widest)
        if fitting and used > width:
            return fitting
        fitting.append(name)
    return fitting


def _caption(rows: int, columns: list[str]) -> str | None:
    said = [f"{rows:,} more rows: --top N"] if rows else []
    if columns:
        said.append(f"more columns: {', '.join(columns)} (--csv, --json or a wider terminal)")
    return "; ".join(said) or None


def _heading(name: str, words: Nouns) -> str:
    if name in _RATES:
        return _RATES[name]
    for unit in ("_ns", "_bytes"):
        name = name.removesuffix(unit)
    name = name.replace("_ns_per_", "_per_")
    if words.device == "CPU":
        name = name.replace("gpu", "cpu").replace("kernels", words.works)
    return name.replace("_", " ")


def _cell(name: str, value: object) -> str:
    """A value as people read it, by the unit that its column's name tells."""
    if value is None:
        return ""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list | dict | bool):
        return plain(_shapes(value))
    assert isinstance(value, int | float)
    return _figure(name, value)


def _figure(name: str, value: float) -> str:
    if name.endswith(("_ns", "_ns_per_token")):
        return f"-{duration(-value)}" if value < 0 else duration(value)
    if name.endswith(_SHARES) or name == "known":
        return percent(value)
    if name.endswith(_NUMBERS):
        return str(value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith(("flops", "flops_per_call")):
        return flops(value)
    return f"{value:,}" if isinstance(value, int) else rounded(value)


def _shapes(value: object) -> str:
    return json.dumps(value) if value not in ({}, []) else ""
