"""The module hierarchy with its times, as a tree in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tracekit.analyses import module_tree
from tracekit.views.wording import duration, nouns, percent, plain, records

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tracekit.dataset import Dataset

_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


def as_text(dataset: Dataset) -> RenderableType:
    """The whole tree; layers that are alike share a line with the sum of their times."""
    words = nouns(dataset)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("module", overflow="ellipsis", no_wrap=True, ratio=1)
    for heading in ("calls", "self", "subtree", f"of {words.device} time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(no_wrap=True, min_width=_BAR)
    for line in records(module_tree.frame(dataset)):
        name = Text(
            "  " * line["depth"] + plain(line["label"]), style="" if line["depth"] else "bold"
        )
        if line["copies"] > 1:
            name.append(f"  {line['copies']} x")
        if line["class_name"]:
            name.append(f" {plain(line['class_name'])}", style="dim")
        times = (duration(line["self_ns"]), duration(line["inclusive_ns"]), percent(line["share"]))
        table.add_row(name, f"{line['calls']:,}", *times, Text(_bar(line["share"]), style="cyan"))
    return table


def _bar(share: float) -> str:
    """A bar as long as the share."""
    eighths = round(min(max(share, 0.0), 1.0) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
