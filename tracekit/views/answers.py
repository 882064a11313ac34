"""Answers of analyses: the chosen rows as a table in the terminal, as JSON or as CSV."""

from __future__ import annotations

import csv
import json
from difflib import get_close_matches
from typing import NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.analyses import nodes
from tracekit.analyses.phase_times import COLUMNS, TRAINING
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.text import safe_in_a_sheet
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError, plain
from tracekit.markers.base import KINDS
from tracekit.views.formatting import ON_CPU, ON_GPU, Nouns, WrappedText, cell, printed_json, records

_ROWS = 30
#: Texts wider than this are folded.
_FOLDED = 24
#: Why an analysis of a dataset with calls has no rows.
_EMPTY = {
    "layers": "no siblings are numbered and alike",
    "steps": (
        "no steps are known; mark them (tracekit.capture.step), or put a range that counts around each iteration, "
        "such as 'step 17'"
    ),
    "copies": "no copies or memory sets were recorded",
    "communication": "no NCCL kernels were recorded",
    "stragglers": "no two ranks are known to have run the same collective of NCCL",
    "fusions": "no kernel is known to serve several modules",
}
_EMPTY["phases"] = _EMPTY["steps"]
_TOLD_BY_PATH = ("label", "pattern", "class_name", "depth", "copies", "modules")
#: The least width of a column of texts.
_LEAST = 8
_LINE_END = "\r\n"
_TEXTS = (str, list, dict, bool)
_GAP = 2
#: Columns of times of modules that are empty where no device did any work, which then does not hide those of the host.
_OF_DEVICES = ("kernels", "self_ns", "subtree_ns", "share", "busy_ns", "steps")
_HEADINGS = {
    "copied_bytes": "copied bytes",
    "copied_ns": "copy time",
    "gpu_ns_per_token": "GPU time per token",
    "known": "attributed",
    "param_bytes": "parameters",
    "subtree_param_bytes": "subtree parameters",
    "roof_share": "share of the roof",
    "waited_ns": "others waited",
    "tflops_per_s": "TFLOP/s",
    "gb_per_s": "GB/s",
    "flops_per_byte": "FLOP/byte",
    "peak_tflops_per_s": "peak TFLOP/s",
    "peak_gb_per_s": "peak GB/s",
    "subtree_tflops_per_s": "subtree TFLOP/s",
}
#: Headings of columns that mean something else beside another column.
_HEADINGS_BESIDE = {("cause", "known"): "how", ("rank", "waited_ns"): "last rank"}


class Choice(NamedTuple):
    """Which rows to show, and in which order.

    Attributes:
        depth: The most levels below the root module.
        min_share: The least ``share``, from 0 to 1.
        sort: A column: numbers from the largest, texts from A; missing values come last.
        top: The most rows.
    """

    depth: int | None = None
    min_share: float | None = None
    sort: str | None = None
    top: int | None = None


def chosen(name: str, frame: pd.DataFrame, choice: Choice, dataset: Dataset) -> pd.DataFrame:
    """The rows of an analysis' answer about a dataset that a choice selects."""
    if choice.depth is not None:
        frame = frame[_depth(name, frame, dataset) <= choice.depth]
    if choice.min_share is not None:
        frame = frame[_column(name, frame, "share") >= choice.min_share]
    if choice.sort is not None:
        by = _column(name, frame, choice.sort)
        if any(isinstance(value, list | dict) for value in by):
            raise UsageError(f"{name} cannot be sorted by {choice.sort}: it holds lists")
        descending = pd.api.types.is_numeric_dtype(by)
        frame = frame.sort_values(str(by.name), ascending=not descending, kind="stable")
    return frame.head(choice.top) if choice.top is not None else frame


def _depth(name: str, frame: pd.DataFrame, dataset: Dataset) -> pd.Series:
    """How many levels below the top the module of each row is; 0 for work outside modules."""
    if "depth" in frame.columns or "path" not in frame.columns:
        return _column(name, frame, "depth")
    modules = hierarchy(dataset)
    depth = dict(zip(modules.path, modules.depth.tolist(), strict=True))
    return pd.Series([depth.get(path, 0) for path in frame["path"]], frame.index, dtype="int64")


def _column(name: str, frame: pd.DataFrame, column: str) -> pd.Series:
    return frame[named(name, frame, column)]


def named(name: str, frame: pd.DataFrame, column: str) -> str:
    """A column by its name, or by its heading in the terminal: ``gpu time``."""
    if column in frame.columns:
        return column
    for candidate in map(str, frame.columns):
        if column in (_heading(candidate, words) for words in (ON_GPU, ON_CPU)):
            return candidate
    matches = get_close_matches(column.replace(" ", "_"), frame.columns, 1)
    hint = f"did you mean {matches[0]}? It has" if matches else "it has"
    raise UsageError(f"{name} has no column {column}; {hint} {', '.join(frame.columns)}")


def as_json(frame: pd.DataFrame) -> str:
    """A list of rows; missing values are null."""
    return printed_json(records(frame), indent=1)


def as_csv(frame: pd.DataFrame) -> str:
    """A header and a line per row. Missing values are empty; all values but texts are written as in JSON.

    Texts that a spreadsheet would take for a formula get an apostrophe in front: see :func:`safe_in_a_sheet`.
    """
    lines = _Lines()
    # The writer quotes cells that hold a character of its line end. Carriage returns must be quoted, so it gets CRLF.
    writer = csv.writer(lines, lineterminator=_LINE_END)
    writer.writerow(frame.columns)
    writer.writerows([_csv_cell(value) for value in row.values()] for row in records(frame))
    return plain("".join(lines), keep="\t\r\n")


class _Lines(list[str]):
    """What a ``csv.writer`` writes, in lines that end in a line feed alone."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix(_LINE_END) + "\n")


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return safe_in_a_sheet(value)
    return json.dumps(value, ensure_ascii=False)


def as_text(frame: pd.DataFrame, words: Nouns, width: int, choice: Choice) -> RenderableType:
    """The first rows, or as many as are asked for, with as many columns from the left as fit.

    The column that the rows are sorted by is always shown, after the first one.
    """
    if frame.empty:
        return Text("no matching rows")
    frame = frame.drop(columns=_idle(frame, choice))
    shown = frame if choice.top is not None else frame.head(_ROWS)
    columns = _columns(_sorted_column_second(shown, choice), words)
    fitting = _fitting(columns, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in fitting:
        column.add_to(table)
    for cells in zip(*(column.cells for column in fitting), strict=True):
        table.add_row(*(column.shown(cell) for column, cell in zip(fitting, cells, strict=True)))
    table.caption = _caption(len(frame) - len(shown), columns[len(fitting) :])
    table.caption_justify = "left"
    return table


def side_by_side(frame: pd.DataFrame) -> pd.DataFrame:
    """Answers about several reports, with what is compared in the columns that a narrow terminal shows.

    The rank distinguishes reports where it is known. Of modules, the path says what their names and depths say.
    """
    first, last = ["host", "rank"], []
    if "rank" in frame.columns and frame["rank"].notna().all():
        last.append("report")
    else:
        first.append("report")
    if "path" in frame.columns:
        first += ["path", "share", "subtree_ns", "self_ns"]
        last += _TOLD_BY_PATH
    between = [name for name in frame.columns if name not in last]
    return frame[[name for name in dict.fromkeys([*first, *between, *last]) if name in frame.columns]]


def nothing(name: str, frame: pd.DataFrame, dataset: Dataset) -> Text:
    """What to show in place of an empty answer of an analysis, and why it is empty."""
    about_modules = not {"path", "module", "class_name"}.isdisjoint(frame.columns)
    if about_modules and not dataset.manifest["rows"]["calls"]:
        return Text(f"no matching rows: {nodes.none(dataset)}")
    return Text(f"no matching rows: {_EMPTY[name]}" if name in _EMPTY else "no matching rows")


class _Column(NamedTuple):
    """A column as it is shown: figures are shown whole or not at all, texts may be folded."""

    name: str
    heading: str
    cells: list[str]
    is_text: bool

    @property
    def width(self) -> int:
        """The least width of the column."""
        widest = max(len(self.heading), *map(len, self.cells))
        return max(min(widest, _FOLDED), _LEAST) if self.is_text else widest

    def add_to(self, table: Table) -> None:
        if self.is_text:
            table.add_column(self.heading, overflow="fold", min_width=_LEAST)
        else:
            table.add_column(self.heading, justify="right", no_wrap=True)

    def shown(self, cell: str) -> Text | WrappedText:
        return WrappedText(Text(cell)) if self.is_text else Text(cell)


def _idle(frame: pd.DataFrame, choice: Choice) -> list[str]:
    """Columns without content, unless rows are sorted by one: phases without training, and the kind of nodes alike."""
    idle = [name for name in COLUMNS if name in frame.columns]
    if any(frame[name].any() for name in idle if name in TRAINING):
        idle = []
    if "subtree_host_ns" in frame.columns and not frame["subtree_ns"].any():
        idle += [name for name in _OF_DEVICES if name in frame.columns]
    if "kind" in frame.columns and frame["kind"].nunique() == 1 and frame["kind"].isin(KINDS).all():
        idle.append("kind")
    return [name for name in idle if choice.sort is None or name != named("", frame, choice.sort)]


def _sorted_column_second(frame: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    if choice.sort is None:
        return frame
    first, by = str(frame.columns[0]), named("", frame, choice.sort)
    return frame[list(dict.fromkeys([first, by, *frame.columns]))]


def _columns(frame: pd.DataFrame, words: Nouns) -> list[_Column]:
    rows = records(frame)
    columns = []
    for name in map(str, frame.columns):
        values = [row[name] for row in rows]
        is_text = any(isinstance(value, _TEXTS) for value in values)
        special = (_HEADINGS_BESIDE.get((name, str(beside))) for beside in frame.columns)
        heading = next(filter(None, special), None) or _heading(name, words)
        columns.append(_Column(name, heading, [cell(name, value) for value in values], is_text))
    return [column for column in columns if any(column.cells)]


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    used = _GAP
    for at, column in enumerate(columns):
        used += _GAP + column.width
        if at and used > width:
            return columns[:at]
    return columns


def _caption(more_rows: int, more_columns: list[_Column]) -> str | None:
    parts = [f"{more_rows:,} more rows: --top N"] if more_rows else []
    if more_columns:
        names = ", ".join(column.name for column in more_columns)
        parts.append(f"more columns: {names} (--csv, --json or a wider terminal)")
    return "; ".join(parts) or None


def _heading(name: str, words: Nouns) -> str:
    name = _HEADINGS.get(name, name.removesuffix("_ns").removesuffix("_bytes").replace("_ns_per_", "_per_"))
    if words.device == "CPU":
        name = name.replace("gpu", "cpu").replace("GPU", "CPU").replace("kernels", words.works)
    return name.replace("_", " ")
