"""What changed between two datasets, in the terminal and as plain data."""

from __future__ import annotations

import re
from collections import Counter
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
_MOST_FAILED = 10
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_SUMMED = (
    "before_ns",
    "after_ns",
    "change_ns",
    "own_change_ns",
    "before_kernels",
    "after_kernels",
)


def as_json(found: Difference, failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison as plain data, for other programs."""
    return {
        "notes": found.notes,
        "rows": records(found.rows),
        "kernels": records(found.kernels),
        "failed": failed,
    }


def as_text(found: Difference, most: int) -> RenderableType:
    """Whole steps, then what changed by itself, numbered modules that changed alike in one line, then what is above.

    Args:
        found: The comparison.
        most: How many lines of modules to show.
    """
    rows = records(found.rows)
    steps = whole_steps(rows)
    changed = changed_parts(rows)
    lines = sorted(folded(changed), key=lambda line: -abs(line["own_change_ns"]))
    parts: list[RenderableType] = [Text(plain(note), style="dim") for note in found.notes]
    parts.append(_table([dict(row, copies=[row]) for row in steps] + lines[:most], by_module(found)))
    tally = Counter(row["status"] for row in changed)
    above = Counter(row["status"] for row in changed if not row["own_change_ns"])
    said = ", ".join(
        f"{tally[status]} {status}" + (f" ({above[status]} by those below)" if above[status] else "")
        for status in _STYLE
        if status in tally
    )
    parts.append(Text(f"Modules: {said}" if said else "No module changed beyond the spread."))
    if len(lines) > most:
        parts.append(Text(f"{count(len(lines) - most, 'more line')}: --limit", style="dim"))
    return Group(*parts)


def judged(failed: list[dict[str, Any]], limit: float) -> list[str]:
    """What is too slow, a line for each of the worst; first the kinds of steps that cannot be compared."""
    worst = sorted(failed, key=lambda row: (row["status"] == "slower", -abs(row["own_change_ns"])))
    lines = [
        f"{_judgement(row, limit)}: " + " ".join(plain(str(row[key])) for key in KEYS if row[key])
        for row in worst[:_MOST_FAILED]
    ]
    if len(failed) > _MOST_FAILED:
        lines.append(f"and {len(failed) - _MOST_FAILED:,} more; --json has all")
    return lines


def _judgement(row: dict[str, Any], limit: float) -> str:
    if row["status"] != "slower":
        side = "second" if row["status"] == "added" else "first"
        return f"only in the {side}, so that nothing tells whether it is slower"
    if row["change"] is None:
        return f"slower by {duration(row['change_ns'])}, from nothing"
    return f"slower by {row['change']:.1%}, more than {limit:.1%}"


def whole_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of whole steps: every kind, and of its sizes those that became slower or faster."""
    return [
        row
        for row in rows
        if row["what"] == "step" and (row["shapes"] is None or row["status"] in ("slower", "faster"))
    ]


def changed_parts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of all else that changed."""
    return [row for row in rows if row["what"] != "step" and row["status"] not in ("same", "unlike")]


def by_module(found: Difference) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The kernels that changed, by what is compared."""
    inside: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for kernel in records(found.kernels):
        inside.setdefault(tuple(kernel[key] for key in KEYS), []).append(kernel)
    return inside


def folded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Modules whose paths differ in a number alone, of the same shapes and status, with the sums of their times."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        pattern = _NUMBER.sub("*", row["path"])
        alike.setdefault((pattern, row["shapes"], row["status"]), []).append(row)
    return [
        {
            **copies[0],
            **{name: _sum(copies, name) for name in _SUMMED},
            "path": pattern if len(copies) > 1 else copies[0]["path"],
            "copies": copies,
        }
        for (pattern, _, _), copies in alike.items()
    ]


def _sum(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def _table(lines: list[dict[str, Any]], inside: dict[tuple[Any, ...], list[dict[str, Any]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("per step", overflow="fold", ratio=1)
    for heading in ("before", "after", "change", "", "kernels"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        name = Text(plain(line["path"]), style="bold" if line["what"] == "step" else "")
        if len(line["copies"]) > 1:
            name.append(f"  {len(line['copies'])} together")
        if line["shapes"]:
            name.append(f" {plain(line['shapes'])}", style="dim")
        status = Text(line["status"], style=_STYLE.get(line["status"], "dim"))
        table.add_row(name, *_figures(line), status, _numbers(line))
        for kernel in kernels_of(line, inside)[:_MOST_KERNELS]:
            own = Text(f"    {plain(kernel['name'])}", style="dim")
            table.add_row(own, *_figures(kernel), "", _numbers(kernel))
    return table


def kernels_of(line: dict[str, Any], inside: dict[tuple[Any, ...], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The kernels that changed in the modules of a line, summed by name."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for copy in line["copies"]:
        for kernel in inside.get(tuple(copy[key] for key in KEYS), []):
            by_name.setdefault(kernel["name"], []).append(kernel)
    summed = [
        {"name": name, **{one: _sum(its, one) for one in _SUMMED if one in its[0]}} for name, its in by_name.items()
    ]
    return sorted(summed, key=lambda kernel: -abs(kernel["change_ns"]))


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


def _number(one: float) -> str:
    return f"{one:,.0f}" if one == round(one) else f"{one:,.1f}"


def _numbers(row: dict[str, Any]) -> str:
    numbers = [row[f"{side}_kernels"] for side in ("before", "after")]
    before, after = ("0" if one is None else _number(one) for one in numbers)
    return before if before == after else f"{before} → {after}"
