"""The module hierarchy with its times, as a tree in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tracekit.analyses import tree as module_tree
from tracekit.views.wording import duration, percent, plain, records

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from tracekit.views.wording import Nouns

_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: From this width on there is room for how much folded layers differ.
_WIDE = 120
#: So many lines are shown unless more are asked for.
_LINES = 200
_HEADINGS = {
    "module": "label",
    "self": "self_ns",
    "subtree": "inclusive_ns",
    "inclusive": "inclusive_ns",
    "of GPU time": "share",
    "of CPU time": "share",
    "median": "median_ns",
    "min": "min_ns",
    "max": "max_ns",
}


def column_of(heading: str) -> str:
    """What the tree calls the column of a heading; what is no heading stays as it is."""
    return _HEADINGS.get(heading, heading)


def as_text(lines: pd.DataFrame, words: Nouns, width: int = _WIDE, most: int = _LINES) -> RenderableType:
    """Lines of the tree; layers that are alike share one with the sum of their times.

    Args:
        lines: What the analysis ``tree`` answers, or some of it.
        words: What work and device are called.
        width: In letters. Wide ones have room for the median of folded layers and how far the least and the most of
            them are apart, as a share of it.
        most: At most so many lines, those of the most time; a last line says how many more there are.
    """
    whole, lines = len(lines), module_tree.largest(lines, most)
    wide = width >= _WIDE and bool(lines["modules"].gt(1).any())
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("module", overflow="ellipsis", no_wrap=True, ratio=1)
    headings = ["calls", "self", "subtree", f"of {words.device} time"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(no_wrap=True, min_width=_BAR)
    for heading in ("median", "spread") if wide else ():
        table.add_column(heading, justify="right", no_wrap=True)
    for line in records(lines):
        times = (duration(line["self_ns"]), duration(line["inclusive_ns"]), percent(line["share"]))
        bar = Text(_bar(line["share"]), style="cyan")
        table.add_row(_name(line), f"{line['calls']:,}", *times, bar, *(_spread(line) if wide else ()))
    if more := whole - len(lines):
        table.caption = f"{more:,} more lines: --top {whole} or --json shows all"
        table.caption_justify = "left"
    return table


def _name(line: dict[str, Any]) -> Text:
    name = Text("  " * line["depth"] + plain(line["label"]), style="" if line["depth"] else "bold")
    if line["copies"] > 1:
        name.append(f"  {line['copies']} x")
    if line["class_name"]:
        name.append(f" {plain(line['class_name'])}", style="dim")
    return name


def _spread(line: dict[str, Any]) -> tuple[str, str]:
    """The median of one of the folded modules, and from the least to the most as a share of it."""
    if line["modules"] < 2 or not line["median_ns"]:  # noqa: PLR2004 - one alone spreads nowhere
        return "", ""
    apart = (line["max_ns"] - line["min_ns"]) / line["median_ns"]
    return duration(line["median_ns"]), percent(apart)


def _bar(share: float) -> str:
    """A bar as long as the share."""
    eighths = round(min(max(share, 0.0), 1.0) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
