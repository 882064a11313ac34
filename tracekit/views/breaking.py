"""Long names in narrow columns of a table: broken after a dot, underscore or space rather than anywhere."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from rich.cells import get_character_cell_size
from rich.measure import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

#: Places to break behind; none is inside a number or before its unit (``62.5 %``).
_BREAK = re.compile(r"(?<!\d)\.|\.(?!\d)|_| (?!%)")


class Breakable:
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
    """Where the second line begins, and every later one."""
    begin, places = 0, [found.end() for found in _BREAK.finditer(text)]
    while (end := _end(text, begin, width)) < len(text):
        last = bisect_right(places, end) - 1
        begin = places[last] if last >= 0 and places[last] > begin else end
        yield begin


def _end(text: str, begin: int, width: int) -> int:
    """Where a line ends that holds as many characters as fit, at least one."""
    end, cells = begin, 0
    while end < len(text):
        cells += get_character_cell_size(text[end])
        if cells > width and end > begin:
            break
        end += 1
    return end
