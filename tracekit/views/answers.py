"""Answers of analyses: the chosen rows as a table in the terminal, as JSON or as CSV."""

from __future__ import annotations

import csv
import json
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.analyses import nodes
from tracekit.analyses.base import Analysis, Columns, taken
from tracekit.analyses.phase_times import COLUMNS, TRAINING
from tracekit.analyses.side_by_side import frame as side_by_side_frame
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.text import safe_in_a_sheet
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError, plain
from tracekit.markers.base import KINDS
from tracekit.views.formatting import ON_CPU, ON_GPU, Nouns, WrappedText, cell, columns_of, printed_json, records

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
    "budget": "no work on a GPU was recorded, and a run on the CPU alone has no budget",
    "findings": "nothing that would save 1 % of the median step or more",
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
#: Headings of columns that mean something else next to another column.
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


def columns(dataset: Dataset, analysis: Analysis, by: str | None, **options: Any) -> Columns:  # noqa: ANN401
    """The answer of an analysis, also report by report; see :func:`tracekit.analyses.side_by_side.frame`."""
    if by is None and (light := getattr(analysis, "columns", None)) is not None:
        found: Columns = light(dataset, **options)
        return found
    return columns_of(side_by_side_frame(dataset, analysis, by, **options))


def chosen(name: str, answer: Columns, choice: Choice, dataset: Dataset) -> Columns:
    """The rows of an analysis' answer about a dataset that a choice selects."""
    if choice.depth is not None:
        answer = taken(answer, _depth(name, answer, dataset) <= choice.depth)
    if choice.min_share is not None:
        answer = taken(answer, answer[named(name, answer, "share")] >= choice.min_share)
    if choice.sort is not None:
        answer = taken(answer, _order(name, answer, choice.sort))
    return answer if choice.top is None else taken(answer, slice(choice.top))


def _order(name: str, answer: Columns, column: str) -> Rows:
    by: list[Any] = answer[named(name, answer, column)].tolist()
    if any(isinstance(value, list | dict) for value in by):
        raise UsageError(f"{name} cannot be sorted by {column}: it holds lists")
    known = [row for row, value in enumerate(by) if value is not None and value == value]
    descending = not any(isinstance(by[row], str) for row in known)
    missing = sorted(set(range(len(by))).difference(known))
    return np.array([*sorted(known, key=by.__getitem__, reverse=descending), *missing], np.int64)


def _depth(name: str, answer: Columns, dataset: Dataset) -> Ints:
    if "depth" in answer or "path" not in answer:
        return answer[named(name, answer, "depth")]
    modules = hierarchy(dataset)
    depth = dict(zip(modules.path, modules.depth.tolist(), strict=True))
    return np.array([depth.get(path, 0) for path in answer["path"]], np.int64)


def named(name: str, answer: Columns, column: str) -> str:
    """A column by its name, or by its heading in the terminal: ``gpu time``."""
    if column in answer:
        return column
    for candidate in answer:
        if column in (_heading(candidate, words) for words in (ON_GPU, ON_CPU)):
            return candidate
    matches = get_close_matches(column.replace(" ", "_"), answer, 1)
    hint = f"did you mean {matches[0]}? It has" if matches else "it has"
    raise UsageError(f"{name} has no column {column}; {hint} {', '.join(answer)}")


def as_json(answer: Columns) -> str:
    """A list of rows; missing values are null."""
    return printed_json(records(answer), indent=1)


def as_csv(answer: Columns) -> str:
    """A header and a line per row. Missing values are empty; all values but texts are written as in JSON.

    Texts that a spreadsheet would take for a formula get an apostrophe in front: see :func:`safe_in_a_sheet`.
    """
    lines = _Lines()
    # The writer quotes cells that hold a character of its line end. Carriage returns must be quoted, so it gets CRLF.
    writer = csv.writer(lines, lineterminator=_LINE_END)
    writer.writerow(answer)
    writer.writerows([_csv_cell(value) for value in row.values()] for row in records(answer))
    return plain("".join(lines), keep="\t\r\n")


class _Lines(list[str]):
    """What a ``csv.writer`` writes, in lines that end in only a line feed."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix(_LINE_END) + "\n")


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    return safe_in_a_sheet(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_text(answer: Columns, words: Nouns, width: int, choice: Choice) -> RenderableType:
    """The first rows, or as many as are asked for, with as many columns from the left as fit.

    The column that the rows are sorted by is always shown, after the first one.
    """
    if not (rows := rows_of(answer)):
        return Text("no matching rows")
    idle = _idle(answer, choice)
    answer = {name: values for name, values in answer.items() if name not in idle}
    shown = answer if choice.top is not None else taken(answer, slice(_ROWS))
    columns = _columns(_sorted_column_second(shown, choice), words)
    fitting = _fitting(columns, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in fitting:
        column.add_to(table)
    for cells in zip(*(column.cells for column in fitting), strict=True):
        table.add_row(*(column.shown(cell) for column, cell in zip(fitting, cells, strict=True)))
    table.caption = _caption(rows - rows_of(shown), columns[len(fitting) :])
    table.caption_justify = "left"
    return table


def rows_of(answer: Columns) -> int:
    """How many rows an answer has."""
    return len(next(iter(answer.values()), ()))


def side_by_side(answer: Columns) -> Columns:
    """Answers about several reports, with what is compared in the columns that a narrow terminal shows.

    The rank distinguishes reports where it is known. Of modules, the path replaces names and depths.
    """
    first, last = ["host", "rank"], []
    if "rank" in answer and None not in answer["rank"].tolist():
        last.append("report")
    else:
        first.append("report")
    if "path" in answer:
        first += ["path", "share", "subtree_ns", "self_ns"]
        last += _TOLD_BY_PATH
    between = [name for name in answer if name not in last]
    return {name: answer[name] for name in dict.fromkeys([*first, *between, *last]) if name in answer}


def nothing(name: str, answer: Columns, dataset: Dataset) -> Text:
    """What to show in place of an empty answer of an analysis, and why it is empty."""
    others = name in _EMPTY and name != "layers"
    about_modules = not others and not {"path", "module", "class_name"}.isdisjoint(answer)
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


def _idle(answer: Columns, choice: Choice) -> list[str]:
    """Columns without content, unless rows are sorted by one: phases without training, and the kind of nodes alike."""
    idle = [name for name in COLUMNS if name in answer]
    if any(answer[name].any() for name in idle if name in TRAINING):
        idle = []
    if "subtree_host_ns" in answer and not answer["subtree_ns"].any():
        idle += [name for name in _OF_DEVICES if name in answer]
    if "kind" in answer and len(kinds := set(answer["kind"])) == 1 and kinds <= set(KINDS):
        idle.append("kind")
    return [name for name in idle if choice.sort is None or name != named("", answer, choice.sort)]


def _sorted_column_second(answer: Columns, choice: Choice) -> Columns:
    if choice.sort is None:
        return answer
    return {name: answer[name] for name in (next(iter(answer)), named("", answer, choice.sort), *answer)}


def _columns(answer: Columns, words: Nouns) -> list[_Column]:
    rows = records(answer)
    columns = []
    for name in answer:
        values = [row[name] for row in rows]
        is_text = any(isinstance(value, _TEXTS) for value in values)
        special = (_HEADINGS_BESIDE.get((name, beside)) for beside in answer)
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
