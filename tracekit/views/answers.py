"""Answers of analyses: the chosen rows as a table in the terminal, as JSON or as CSV."""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from tracekit.aggregates import nodes
from tracekit.aggregates.phase_times import COLUMNS, TRAINING
from tracekit.aggregates.subtrees import hierarchy
from tracekit.answers.side_by_side import RANK, REPORT
from tracekit.arrays.columns import selected
from tracekit.arrays.text import safe_in_a_sheet
from tracekit.arrays.types import Columns, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError, did_you_mean, plain
from tracekit.markers.base import KINDS
from tracekit.steptime import budget
from tracekit.views import formatting
from tracekit.views.formatting import ON_CPU, ON_GPU, Nouns, WrappedText, cell, lists_of, printed_json, records

_ROWS = 30
#: Texts wider than this are folded: as narrow as it takes to show the columns that answer the question.
_FOLDED = (24, 20, 16, 12, 8)
#: Why an analysis of a dataset with calls has no rows.
_EMPTY = {
    "layers": "no numbered siblings of the same kind",
    **dict.fromkeys(
        ("steps", "phases"),
        "no steps are known; mark them (tracekit.capture.step), or put a range that counts around each iteration, "
        "such as 'step 17'",
    ),
    "budget": "no work on a GPU was recorded, and only that has a budget and findings",
    "findings": "nothing that would save 1 % or more",
    "copies": "no copies or memory sets were recorded",
    "communication": "no collectives were recorded; name kernels of your own with tracekit parse --collective",
    "ranks": "fewer than two GPUs worked in steps, and ranks are compared with each other",
    "stragglers": (
        "no two ranks are known to have run the same collective; tracekit show clocks shows why, and tracekit show "
        "ranks which rank works longest"
    ),
    "lines": (
        "no lines of Python were recorded: torch.profiler with with_stack=True, nsys profile with "
        "--python-backtrace=cuda and nsys export with --include-blobs=true"
    ),
    "fusions": "no kernel is known to serve several modules",
    "launches": "no launches were recorded, as of a run on the CPU",
    "gaps": "no device was idle between two kernels",
}
#: Columns of counts that are no answer if all of them are 0.
_COUNTED = {"launches": ("launches", "replayed_ns")}
#: The least width of a column of texts.
_LEAST = 8
#: So many rows become text at once.
_AT_ONCE = 1 << 13
_TEXTS = (str, list, dict, bool)
_GAP = 2
#: Columns of times of modules that are empty where no device did any work, which then does not hide those of the host.
_OF_DEVICES = ("kernels", "self_ns", "subtree_ns", "share", "busy_ns", "steps")
_HEADINGS = {
    "runs": "calls",
    "ns": "time",
    "copied_bytes": "copied bytes",
    "copied_ns": "copy time",
    "gpu_ns_per_token": "GPU time per token",
    "known": "attributed",
    "launch_bound_share": "self launch-bound share",
    "param_bytes": "parameters",
    "subtree_launch_bound_share": "launch-bound share",
    "subtree_param_bytes": "subtree parameters",
    "slower_share": "slower by",
    "roof_share": "share of the roof",
    "waited_ns": "others waited",
    "tflops_per_s": "TFLOP/s",
    "gb_per_s": "GB/s",
    "algorithm_gb_per_s": "algorithm GB/s",
    "bus_gb_per_s": "bus GB/s",
    "flops_per_byte": "FLOP/byte",
    "peak_tflops_per_s": "peak TFLOP/s",
    "peak_gb_per_s": "peak GB/s",
    "subtree_tflops_per_s": "subtree TFLOP/s",
}
#: Units that cells show themselves.
_UNIT = re.compile("_(ns|bytes|pct)$")
#: Shown in columns of modules for work outside all of them, and in that of files for work of unknown lines.
_ABSENT = {**dict.fromkeys(("path", "module", "before", "after"), "(outside)"), "file": "(not recorded)"}
#: Headings of columns that mean something else next to another column.
_HEADINGS_BESIDE = {("cause", "known"): "how", ("rank", "waited_ns"): "last rank"}


class Choice(NamedTuple):
    """Which rows to show, and in which order.

    At most ``depth`` levels below the root, with at least ``min_share`` (0 to 1), sorted by a column (numbers from the
    largest, texts from A, missing values last), the first ``top``; ``columns`` by name or heading.
    """

    depth: int | None = None
    min_share: float | None = None
    sort: str | None = None
    top: int | None = None
    columns: Sequence[str] | None = None


def chosen(name: str, answer: Columns, choice: Choice, dataset: Dataset) -> Columns:
    """The rows of an analysis' answer about a dataset that a choice selects, with all columns."""
    if choice.depth is not None:
        answer = selected(answer, _depth(name, answer, dataset) <= choice.depth)
    if choice.min_share is not None:
        answer = selected(answer, answer[named(name, answer, "share")] >= choice.min_share)
    if choice.sort is not None:
        answer = selected(answer, _order(name, answer, choice.sort))
    return answer if choice.top is None else selected(answer, slice(choice.top))


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
        if column in (heading(candidate, words) for words in (ON_GPU, ON_CPU)):
            return candidate
    raise UsageError(f"{name or 'the answer'} has no column {column}; {did_you_mean(column.replace(' ', '_'), answer)}")


def picked(name: str, answer: Columns, choice: Choice) -> Columns:
    """The columns that a choice names, in its order; all of them if it names none."""
    if choice.columns is None:
        return answer
    return {column: answer[column] for column in (named(name, answer, wanted) for wanted in choice.columns)}


def as_json(parts: Iterable[Columns]) -> Iterator[str]:
    """A list of the rows of answers, one a line, so that no text is as long as all of them; missing values are null.

    If an answer fails, what was yielded are whole lines of a list that does not end.
    """
    line, after = "[", "\n"
    for part in parts:
        for first in range(0, rows_of(part), _AT_ONCE):
            for row in records(selected(part, slice(first, first + _AT_ONCE))):
                yield line + after
                line, after = printed_json(row), ",\n"
    yield f"{line}]\n" if line == "[" else f"{line}\n]\n"


def as_csv(answer: Columns) -> str:
    """A header and a line per row. Missing values are empty; all values but texts are written as in JSON.

    Texts that a spreadsheet would take for a formula get an apostrophe in front: see :func:`safe_in_a_sheet`.
    """
    lines = _Lines()
    # The writer quotes cells that hold a character of its line end. Carriage returns must be quoted, so it gets CRLF.
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(answer)
    writer.writerows([_csv_cell(value) for value in row.values()] for row in records(answer))
    return plain("".join(lines), keep="\t\r\n")


class _Lines(list[str]):
    """What a ``csv.writer`` writes, in lines that end in only a line feed."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def _csv_cell(value: object) -> object:
    if value is None or isinstance(value, str):
        return value and safe_in_a_sheet(value)
    return json.dumps(value, ensure_ascii=False)


def as_text(answer: Columns, words: Nouns, width: int, choice: Choice, asked: Sequence[str] = ()) -> RenderableType:
    """The first rows, or as many as are asked for, with as many columns as fit ``width``; a caption names the others.

    Columns that the choice names are shown in its order; otherwise those ``asked`` come first, the most important of
    them in front, and the one that rows are sorted by second.
    """
    rows = rows_of(answer)
    if choice.columns is None:
        idle = _idle(answer, choice)
        names = [name for name in dict.fromkeys((*asked, *answer)) if name in answer and name not in idle]
        names[1:1] = [] if choice.sort is None else [named("", answer, choice.sort)]
        answer = {name: answer[name] for name in names}
    else:
        asked = [*(answer := picked("", answer, choice))]
    shown = answer if choice.top is not None else selected(answer, slice(_ROWS))
    columns = _columns(shown, words, keep_empty=choice.columns is not None)
    fitting = _fitting(columns, width, asked)
    table = formatting.plain_table()
    for column in fitting:
        if column.is_text:
            table.add_column(column.heading, overflow="fold", min_width=_LEAST)
        else:
            table.add_column(column.heading, justify="right", no_wrap=True)
    texts = [[WrappedText(Text(cell)) if column.is_text else Text(cell) for cell in column.cells] for column in fitting]
    for cells in zip(*texts, strict=True):
        table.add_row(*cells)
    caption = [f"{rows - rows_of(shown):,} more rows: --top N"] if rows > rows_of(shown) else []
    if more := ", ".join(column.name for column in columns[len(fitting) :]):
        caption.append(f"more columns: {more} (--columns NAME,NAME, a wider terminal, --csv or --json)")
    table.caption, table.caption_justify = "; ".join(caption) or None, "left"
    return table


def rows_of(answer: Columns) -> int:
    """How many rows an answer has."""
    return len(next(iter(answer.values()), ()))


def side_by_side(answer: Columns, by: str, asked: Sequence[str]) -> list[str]:
    """The columns that matter in answers about several reports: in front what distinguishes these."""
    is_known = by != RANK or RANK not in answer or None not in answer[RANK].tolist()
    return [by, *([] if is_known else [REPORT]), *(name for name in asked if name != REPORT)]


def is_empty(name: str, answer: Columns) -> bool:
    """Whether an analysis found nothing."""
    return not rows_of(answer) or (name in _COUNTED and not any(answer[column].any() for column in _COUNTED[name]))


def nothing(name: str, answer: Columns, dataset: Dataset) -> Text:
    """What to show in place of an empty answer of an analysis, and why it is empty."""
    others = name in _EMPTY and name != "layers"
    about_modules = not others and not {"path", "module", "class_name"}.isdisjoint(answer)
    if about_modules and not dataset.manifest["rows"]["calls"]:
        return Text(f"no matching rows: {nodes.none(dataset)}")
    if dataset.root is not None and name not in ("layers", "fusions"):
        return Text(f"no matching rows: {nodes.noun(dataset)}s of this path have none")
    if name == "findings" and not budget.summed(dataset).has_work:
        return Text(f"no GPU: {_EMPTY['budget']}")
    if name == "stragglers" and dataset.reports:
        from tracekit.answers import clocks  # noqa: PLC0415 - only after it has been asked

        why = clocks.frame(dataset)["why"].dropna().unique().tolist()
        return Text(f"no matching rows: {'; '.join(why) or _EMPTY[name]}; tracekit show clocks shows it by report")
    return Text(f"no matching rows: {_EMPTY.get(name, 'no work of a device was recorded')}")


class _Column(NamedTuple):
    """A column as it is shown: figures are shown whole or not at all, texts may be folded."""

    name: str
    heading: str
    cells: list[str]
    is_text: bool

    def width(self, folded: int) -> int:
        """The least width of the column, if texts wider than this are folded."""
        widest = max(len(self.heading), *map(len, self.cells))
        return max(min(widest, folded), _LEAST) if self.is_text else widest


def _idle(answer: Columns, choice: Choice) -> list[str]:
    """Columns without content, unless rows are sorted by one: phases without training, a kind that all nodes have."""
    idle = [name for name in COLUMNS if name in answer]
    if any(answer[name].any() for name in idle if name in TRAINING):
        idle = []
    if "subtree_host_ns" in answer and not answer["subtree_ns"].any():
        idle += [name for name in _OF_DEVICES if name in answer]
    if "kind" in answer and len(kinds := set(answer["kind"])) == 1 and kinds <= set(KINDS):
        idle.append("kind")
    return [name for name in idle if choice.sort is None or name != named("", answer, choice.sort)]


def _columns(answer: Columns, words: Nouns, *, keep_empty: bool) -> list[_Column]:
    columns = []
    for name, found in lists_of(answer).items():
        values = [_ABSENT.get(name) if value is None else value for value in found]
        is_text = any(isinstance(value, _TEXTS) for value in values)
        cells = [cell(name, value) for value in values]
        columns.append(_Column(name, heading(name, words, answer), cells, is_text))
    return [column for column in columns if keep_empty or any(column.cells)]


def _fitting(columns: list[_Column], width: int, asked: Sequence[str]) -> list[_Column]:
    fitting = columns[:1]
    for folded in _FOLDED:
        widths = accumulate((_GAP + column.width(folded) for column in columns), initial=_GAP)
        fitting = columns[: max(1, sum(used <= width for used in widths) - 1)]
        if not any(column.name in asked for column in columns[len(fitting) :]):
            break
    return fitting


def heading(name: str, words: Nouns, beside: Iterable[str] = ()) -> str:
    """What the terminal calls a column, which can depend on the columns beside it."""
    if special := next((text for other in beside if (text := _HEADINGS_BESIDE.get((name, other)))), None):
        return special
    name = _HEADINGS.get(name, _UNIT.sub("", name).replace("_ns_per_", "_per_"))
    if words.device == "CPU":
        name = name.replace("gpu", "cpu").replace("GPU", "CPU").replace("kernels", words.works)
    return name.replace("_", " ")
