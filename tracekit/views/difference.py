"""What changed between two datasets, in the terminal and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tracekit.analyses.step_times import KEYS
from tracekit.views.wording import count, duration, plain, records

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tracekit.analyses.difference import Difference

_STYLE = {"slower": "red", "added": "red", "faster": "green", "gone": "green"}
#: Kernels shown of each module, those that changed most.
_MOST_KERNELS = 3


def as_json(found: Difference, failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison as plain data, for other programs."""
    return {
        "notes": found.notes,
        "rows": records(found.rows),
        "kernels": records(found.kernels),
        "failed": failed,
    }


def as_text(found: Difference, most: int) -> RenderableType:
    """What changed, the largest change first, and the kernels inside.

    Args:
        found: The comparison.
        most: How many changed modules to show.
    """
    changed = [row for row in records(found.rows) if row["status"] != "same"]
    steps = [row for row in records(found.rows) if row["what"] == "step"]
    rest = [row for row in changed if row["what"] != "step"]
    parts: list[RenderableType] = [Text(plain(note), style="dim") for note in found.notes]
    parts.append(_table(steps + rest[:most], found))
    tally = {status: sum(row["status"] == status for row in rest) for status in _STYLE}
    said = ", ".join(f"{number} {status}" for status, number in tally.items() if number)
    parts.append(Text(f"Modules: {said}" if said else "No module changed beyond the spread."))
    if len(rest) > most:
        parts.append(Text(f"{count(len(rest) - most, 'change')} more: --limit", style="dim"))
    return Group(*parts)


def _table(rows: list[dict[str, Any]], found: Difference) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("per step", overflow="fold", ratio=1)
    for heading in ("before", "after", "change", "", "kernels"):
        table.add_column(heading, justify="right", no_wrap=True)
    inside: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for kernel in records(found.kernels):
        inside.setdefault(tuple(kernel[key] for key in KEYS), []).append(kernel)
    for row in rows:
        name = Text(plain(row["path"]), style="bold" if row["what"] == "step" else "")
        if row["shapes"]:
            name.append(f" {plain(row['shapes'])}", style="dim")
        status = Text(row["status"], style=_STYLE.get(row["status"], "dim"))
        table.add_row(name, *_figures(row), status, _numbers(row))
        for kernel in inside.get(tuple(row[key] for key in KEYS), [])[:_MOST_KERNELS]:
            own = Text(f"    {plain(kernel['name'])}", style="dim")
            table.add_row(own, *_figures(kernel), "", _numbers(kernel))
    return table


def _figures(row: dict[str, Any]) -> tuple[str, str, str]:
    before, after = (_time(row[f"{side}_ns"]) for side in ("before", "after"))
    sign = "-" if row["change_ns"] < 0 else "+"
    change = f"{sign}{duration(round(abs(row['change_ns'])))}"
    if row["before_ns"]:
        share = row["change_ns"] / row["before_ns"]
        change += f" ({share:+.1%})".replace("%", " %")
    return before, after, change


def _time(ns: float | None) -> str:
    return "" if ns is None else duration(round(ns))


def _numbers(row: dict[str, Any]) -> str:
    numbers = [row[f"{side}_kernels"] for side in ("before", "after")]
    before, after = ("0" if one is None else f"{one:,.10g}" for one in numbers)
    return before if before == after else f"{before} → {after}"
