"""The hierarchy with its times, as a tree in the terminal."""

from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.aggregates import nodes, phase_times
from tracekit.aggregates.phase_times import COLUMNS, TRAINING
from tracekit.answers import tree as module_tree
from tracekit.arrays.columns import selected
from tracekit.arrays.types import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain
from tracekit.views.formatting import Nouns, cell, duration, nouns, percent, plain_table, records, room_beside, truncate

_BAR_CELLS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: From this width on there is room for the median and spread of folded layers.
_WIDE = 120
#: Lines shown unless more are asked for.
_LINES = 200
_BAR = ""
#: Columns of a subtree's time in each phase.
_PHASES = {name.removesuffix("_ns"): name for name in COLUMNS}
#: Columns that are left out, in this order, while names have less room than this.
_DISPENSABLE = (((_BAR,), 20), (("calls",), 20), (("self",), 20), (tuple(_PHASES), 12), (("subtree",), 8))
#: What a row of work outside modules lacks of a line of the tree.
_NO_MODULE = {"path": None, "calls": None, "depth": 0, "copies": 1, "modules": 1, "class_name": None, "median_ns": None}
_HEADINGS = {
    **dict.fromkeys(("module", "range", "operator", "node"), "label"),
    "self": "self_ns",
    "subtree": "subtree_ns",
    **_PHASES,
    "GPU share": "share",
    "CPU share": "share",
    "host": "subtree_host_ns",
    "median": "median_ns",
    "min": "min_ns",
    "max": "max_ns",
}


def column_of(heading: str) -> str:
    """The column of the analysis behind a heading of the tree; any other text as it is."""
    return _HEADINGS.get(heading, heading)


def of_dataset(
    dataset: Dataset, lines: Columns, width: int, *, top: int | None = None, min_share: float | None = None
) -> RenderableType:
    """Chosen lines of a dataset's tree; unless only so many are asked for, with work outside modules.

    Where lines are not modules, the first lines explain what they are.
    """
    words, why = nouns(dataset), [Text(plain(sentence), style="dim") for sentence in nodes.why(dataset)]
    if top is not None:
        return Group(*why, as_text(lines, words, width, top))
    outside = phase_times.outside(dataset)
    return Group(*why, as_text(lines, words, width, outside=selected(outside, outside["share"] >= (min_share or 0))))


def indented(lines: Columns) -> Columns:
    """The lines with labels that show their depth, for a table of chosen columns."""
    rows = zip(lines["label"].tolist(), lines["depth"].tolist(), strict=True)
    return lines | {"label": np.array(["  " * depth + label for label, depth in rows], object)}


def as_text(
    lines: Columns, words: Nouns, width: int = _WIDE, most: int = _LINES, outside: Columns | None = None
) -> RenderableType:
    """The tree as a table; layers with the same class and parameters share one line with the sum of their times.

    At most so many lines are shown, those with the most time; a caption reports how many are hidden. Work ``outside``
    modules follows in a training, or where lines are not modules: without it, optimizers and losses would be missing.
    """
    shown = records(selected(lines, module_tree.largest(lines, most)))
    table = table_of(shown, words, width, outside)
    if hidden := len(lines["label"]) - len(shown):
        table.caption = f"{hidden:,} more lines: --top {len(lines['label'])} or --json shows all"
        table.caption_justify = "left"
    return table


def table_of(rows: list[dict[str, Any]], words: Nouns, width: int, outside: Columns | None = None) -> Table:
    """A table with a row for each line of the tree; no row takes more than one line of the terminal.

    Where there was training, subtrees have columns for its phases, and work outside modules follows the tree. A wide
    terminal also gets the median of folded layers, and their spread: largest less smallest, as a share of it.
    """
    if not any(row["subtree_ns"] for row in rows):
        rows, words = _on_host(rows), words._replace(device="host")
    trains = any(row[name] for row in rows for name in TRAINING)
    phases = [phase for phase, name in _PHASES.items() if trains and any(row[name] for row in rows)]
    others = [] if outside is None else records(outside)
    if phases or words.node != "module" or any(row[name] for row in others for name in TRAINING):
        about = [{"label": f"({row['cause']})", "subtree_ns": row["self_ns"]} for row in others]
        rows = rows + [_NO_MODULE | row | text for row, text in zip(others, about, strict=True)]
    columns = _figures(rows, phases, words, wide=width >= _WIDE)
    for headings, least in _DISPENSABLE:
        if room_beside(columns, width) >= least:
            break
        columns = {heading: cells for heading, cells in columns.items() if heading not in headings}
    room = room_beside(columns, width)
    # By two spaces a level, or by one where two would cut a name off.
    widest = max((2 * row["depth"] + cell_len(plain(row["label"])) for row in rows), default=0)
    names = [_name(row, ("  " if widest <= room else " ") * row["depth"], room) for row in rows]
    table = plain_table()
    longest = max([len(words.node), *(name.cell_len for name in names)])
    table.add_column(words.node, overflow="ellipsis", no_wrap=True, width=min(longest, max(room, 1)))
    for heading in columns:
        is_bar = heading == _BAR
        table.add_column(heading, no_wrap=True, justify="left" if is_bar else "right", style="cyan" if is_bar else "")
    for cells in zip(names, *columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _on_host(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    whole = sum(row["subtree_host_ns"] for row in rows if not row["depth"])
    return [
        row
        | {"self_ns": row["host_ns"], "subtree_ns": row["subtree_host_ns"], "median_ns": None}
        | {"share": row["subtree_host_ns"] / whole if whole else 0.0}
        for row in rows
    ]


def _figures(rows: list[dict[str, Any]], phases: list[str], words: Nouns, *, wide: bool) -> dict[str, list[str]]:
    times = {heading: _HEADINGS[heading] for heading in ("self", "subtree", *phases)}
    columns = {
        "calls": ["" if row["calls"] is None else f"{row['calls']:,}" for row in rows],
        **{heading: [cell(name, row[name]) for row in rows] for heading, name in times.items()},
        f"{words.device} share": [percent(row["share"]) for row in rows],
        _BAR: [_bar(row["share"]) for row in rows],
    }
    if wide and any(row["modules"] > 1 for row in rows):
        columns |= {"median": [""] * len(rows), "spread": [""] * len(rows)}
        for at, row in enumerate(rows):
            if row["modules"] > 1 and row["median_ns"]:
                columns["median"][at] = duration(row["median_ns"])
                columns["spread"][at] = percent((row["max_ns"] - row["min_ns"]) / row["median_ns"])
    return columns


def _name(row: dict[str, Any], indent: str, width_left: int) -> Text:
    style = "dim" if row["path"] is None else "" if row["depth"] else "bold"
    copies = f"  {row['copies']} x" if row["copies"] > 1 else ""
    name = Text(f"{indent}{truncate(plain(row['label']), width_left - len(indent) - len(copies))}{copies}", style=style)
    class_name = f" {plain(row['class_name'])}" if row["class_name"] else ""
    if name.cell_len + cell_len(class_name) <= width_left:
        name.append(class_name, style="dim")
    return name


def _bar(share: float) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_CELLS * 8)
    return f"{'█' * (eighths // 8)}{_EIGHTHS[eighths % 8].strip()}".ljust(_BAR_CELLS)
