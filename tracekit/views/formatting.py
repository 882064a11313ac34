"""Numbers, names and nouns for people, in a terminal and on a page."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells, get_character_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tracekit.aggregates import nodes
from tracekit.aggregates.phase_times import COLUMNS
from tracekit.arrays.text import SHOWN_AS_ZERO, duration as duration, in_units, percent as percent, rounded as rounded
from tracekit.arrays.types import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain

#: Replaces the middle of a long text; the least room in which that is done.
CUT, _LEAST_CELLS = "\N{HORIZONTAL ELLIPSIS}", 12
_PREFIXES = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))
#: Names of columns of numbers that identify something: no thousands separators.
_IDENTIFIERS = ("_id", "pid", "rank", "device", "index", "line")
_SHARES = ("share", "spread")
#: Longer texts lose their middle.
_LONGEST = 240
#: Lines about what failed a comparison.
_MOST_FAILED = 10
_NOT_ASCII = re.compile(r"[^\n -~]")
#: Places to break behind; never inside a number or before its unit (``62.5 %``).
_BREAK = re.compile(r"(?<!\d)\.|\.(?!\d)|_| (?!%)")


#: Between two columns of a table, and around it.
_GAP = 2


class Nouns(NamedTuple):
    """What a kernel and kernels are called, the device (``GPU`` or ``CPU``), and a row of the hierarchy."""

    work: str
    works: str
    device: str
    node: str = "module"

    @property
    def nodes(self) -> str:
        """Several rows of the hierarchy: ``modules``."""
        return f"{self.node}s"


ON_GPU = Nouns("kernel", "kernels", "GPU")
ON_CPU = Nouns("operator", "operators", "CPU")


def nouns(dataset: Dataset) -> Nouns:
    """Kernels on the GPU, or operators on the CPU where the dataset holds only these; and what the hierarchy holds."""
    kinds = {
        kind
        for part in dataset.by_report()
        for kind in part.table("kernels", ["kind"]).column("kind").unique().to_pylist()
    }
    return (ON_CPU if kinds == {"cpu_op"} else ON_GPU)._replace(node=nodes.noun(dataset))


def columns_of(frame: pd.DataFrame) -> Columns:
    """The columns of a DataFrame; where these are not plain numbers, missing values are None."""
    plain = {name: isinstance(dtype, np.dtype) and dtype.kind != "O" for name, dtype in frame.dtypes.items()}
    return {
        str(name): (column if plain[name] else column.astype(object).where(column.notna(), None)).to_numpy()
        for name, column in frame.items()
    }


def lists_of(answer: pd.DataFrame | Columns) -> dict[str, list[Any]]:
    """The columns of a DataFrame, or of columns by their names, as plain lists; missing values are None."""
    columns = answer if isinstance(answer, dict) else columns_of(answer)
    return {name: [None if value != value else value for value in column.tolist()] for name, column in columns.items()}


def records(answer: pd.DataFrame | Columns) -> list[dict[str, Any]]:
    """The rows of a DataFrame, or of columns by their names; missing values are None."""
    columns = lists_of(answer)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Lists of what has one key, in the order in which keys are met."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def size(number_of_bytes: float) -> str:
    """Bytes in the largest decimal unit that fits, three digits: ``1.23 MB``."""
    return in_units(number_of_bytes, [(size, f"{prefix}B") for size, prefix in _PREFIXES])


def flops(number: float) -> str:
    """Operations in the largest unit that fits, three digits: ``1.23 GFLOP``."""
    return in_units(number, [(size, f"{prefix}FLOP") for size, prefix in _PREFIXES])


def change(share: float) -> str:
    """A share that something changed by: ``+1.9 %``, ``-20.0 %``, ``<0.1 %``."""
    return percent(share) if abs(share) < SHOWN_AS_ZERO else f"{share:+.1%}".replace("%", " %")


def printed_json(value: object, indent: int | None = None) -> str:
    """The value as JSON in which every character that could steer a terminal is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _NOT_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters: of a longer one begin and end."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}{CUT}{text[-half:]}"


def truncate(text: str, cells: int) -> str:
    """A text in so many cells of the terminal: of a longer one begin and end, if there is room for both."""
    if cells < _LEAST_CELLS or cell_len(text) <= cells:
        return text
    text, half = shortened(text, 2 * cells), cells // 2
    return f"{chop_cells(text, cells - half - 1)[0]}{CUT}{chop_cells(text[::-1], half)[0][::-1]}"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """``1 kernel``, ``1,000 kernels``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def worst(lines: Sequence[str]) -> list[str]:
    """The first lines about what failed, and how many more there are."""
    more = len(lines) - _MOST_FAILED
    return [*lines[:_MOST_FAILED], *([f"and {more:,} more: --json lists all"] if more > 0 else [])]


#: The cells of a table by the headings of their columns.
Cells: TypeAlias = Mapping[str, Sequence[str | Text]]


def fitting(columns: Cells, spared: Sequence[str], width: int) -> dict[str, Sequence[str | Text]]:
    """The columns of a table, texts by heading, that fit a width: without as many of ``spared`` as it takes."""
    kept = dict(columns)
    for heading in spared:
        if room_beside(kept, width) < 0:
            del kept[heading]
    return kept


def room_beside(columns: Cells, width: int) -> int:
    """How many characters of a width columns leave."""
    return width - _GAP - sum(_GAP + max(map(len, (heading, *texts))) for heading, texts in columns.items())


def plain_table(first: str | None = None, figures: Iterable[str] = (), **options: Any) -> Table:  # noqa: ANN401 - of rich
    """A table with a line only below its head: a first column of texts, if it has a heading, and columns of figures."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), **options)
    if first is not None:
        made.add_column(first, overflow="fold")
    for heading in figures:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def table_of(columns: Cells, texts: Collection[str]) -> Table:
    """A table of columns by their headings: texts on the left, figures on the right; no cell takes a second line."""
    table = plain_table()
    for heading in columns:
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def cell(name: str, value: object) -> str:
    """A value of a column for people; None is empty, as is a time of 0 in a phase."""
    if value is None or (value == 0 and name in COLUMNS):
        return ""
    if isinstance(value, str):
        return plain(shortened(value, _LONGEST))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict):
        return plain(json.dumps(value)) if value else ""
    assert isinstance(value, int | float)
    return _figure(name, value)


def _figure(name: str, value: float) -> str:
    if name == "ns" or name.endswith(("_ns", "_ns_per_token")):
        return duration(value)
    if name.endswith(_SHARES) or name == "known":
        return percent(value)
    if name.endswith("_pct"):
        return percent(value / 100)
    if name.endswith(_IDENTIFIERS):
        return str(value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith(("flops", "flops_per_call")):
        return flops(value)
    return f"{value:,}" if isinstance(value, int) else rounded(value)


class WrappedText:
    """A text that takes as many lines as its column is too narrow for."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        width = self._text.cell_len
        return Measurement(min(1, width), width).clamp(None, options.max_width)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._text.divide(list(_breaks(self._text.plain, options.max_width))):
            line.rstrip()
            yield line


def _breaks(text: str, width: int) -> Iterator[int]:
    begin, places = 0, [found.end() for found in _BREAK.finditer(text)]
    while (end := _end(text, begin, width)) < len(text):
        last = bisect_right(places, end) - 1
        begin = places[last] if last >= 0 and places[last] > begin else end
        yield begin


def _end(text: str, begin: int, width: int) -> int:
    cells = accumulate(map(get_character_cell_size, text[begin:]))
    return begin + max(sum(used <= width for used in cells), 1)
