"""How modules did over many runs, in the terminal and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.arrays.types import Columns, Floats
from tracekit.comparison.trend import Change, Module, Trend
from tracekit.errors import plain
from tracekit.views.formatting import WrappedText, by_key, change, count, duration, percent, plain_table, shortened

_BARS = "▁▂▃▄▅▆▇█"
_LEAST_BARS, _MOST_FAILED = 8, 10
#: What stands beside the bars of a line.
_OTHERS = 70


def as_json(trend: Trend) -> dict[str, Any]:
    """Runs, modules and changes as plain data, for other programs; null where a module had no work."""
    runs = zip(trend.runs, trend.factors.tolist(), strict=True)
    return {
        "runs": [
            {"name": run.name, "started_utc_ns": run.started_utc_ns, "factor": round(factor, 6)} for run, factor in runs
        ],
        "modules": [
            {
                "path": module.path,
                "step": module.step,
                "median_ns": _whole(module.subtree_ns),
                "own_median_ns": _whole(module.own_ns),
            }
            for module in trend.modules
        ],
        "changes": [
            {
                "module": change.module.path,
                "step": change.module.step,
                "run": trend.runs[change.run].name,
                "before_ns": round(change.before_ns),
                "after_ns": round(change.after_ns),
                "change": change.change,
                "confidence": change.confidence,
            }
            for change in trend.changes
        ],
    }


def as_columns(trend: Trend) -> Columns:
    """A row for each module, kind and size of steps, and run; a change is in the row of the first run after it."""
    runs, modules = trend.runs, trend.modules
    changes = {(one.module.step, one.module.path, one.run): one for one in trend.changes}
    rows = [(module, at) for module in modules for at in range(len(runs))]
    changed = [changes.get((module.step, module.path, at)) for module, at in rows]
    columns: dict[str, Sequence[object]] = {
        "path": [module.path for module, _ in rows],
        "step": [module.step for module, _ in rows],
        "run": [runs[at].name for _, at in rows],
        "started_utc_ns": [runs[at].started_utc_ns for _, at in rows],
        "median_ns": [value for module in modules for value in _whole(module.subtree_ns)],
        "own_median_ns": [value for module in modules for value in _whole(module.own_ns)],
        "change": [change and change.change for change in changed],
        "confidence": [change and change.confidence for change in changed],
    }
    return {name: np.array(values, object) for name, values in columns.items()}


def _whole(values: Floats) -> list[int | None]:
    return [None if value != value else round(value) for value in values.tolist()]


def as_text(trend: Trend, most: int, width: int) -> RenderableType:
    """The changes, equal ones of numbered siblings on one line, then the modules with the most time.

    Args:
        trend: What is shown.
        most: The most lines of either.
        width: That of the terminal.
    """
    parts: list[RenderableType] = [Text(plain(note), style="dim") for note in trend.notes]
    parts.append(Text(summary(trend)))
    lines = folded(trend)
    if lines:
        parts.append(_changes(trend, lines[:most]))
    rest = {"change": len(lines) - most, trend.node: len(trend.modules) - most}
    parts.append(_modules(trend, trend.modules[:most], max(width - _OTHERS, _LEAST_BARS)))
    more = [count(number, f"more {name}") for name, number in rest.items() if number > 0]
    return Group(*parts, *([Text(f"{' and '.join(more)}: --top N", style="dim")] if more else []))


def summary(trend: Trend) -> str:
    """How many runs of which time there are, how much they vary, and how many modules changed."""
    starts = [run.started_utc_ns for run in trend.runs]
    when = "" if None in starts else f" from {_day(starts[0])} to {_day(starts[-1])}"
    runs = f"{count(len(trend.runs), 'run')}{when}"
    if not trend.noise:
        return f"{runs}."
    spread = float(np.std(np.log(trend.factors), ddof=1))
    changed = len({change.module.path for change in trend.changes})
    return (
        f"{runs}. Between runs all {trend.node}s together vary by {_percent(spread)}, one beside that by "
        f"{_percent(trend.noise)}. {changed or 'No'} {trend.node}{'s' * (changed > 1)} changed by more."
    )


def _day(ns: int | None) -> str:
    return datetime.fromtimestamp((ns or 0) / 1e9, UTC).strftime("%Y-%m-%d %H:%M")


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")


def folded(trend: Trend) -> list[list[Change]]:
    """Changes at the same run of modules whose paths differ only in a number, those of most time first."""

    def alike(one: Change) -> tuple[str, str, int, bool]:
        return one.module.step, trend.patterns.get(one.module.path, one.module.path), one.run, one.change > 0

    lines = by_key(trend.changes, alike).values()
    return sorted(lines, key=lambda line: -abs(sum(one.after_ns - one.before_ns for one in line)))


def _changes(trend: Trend, lines: list[list[Change]]) -> Table:
    table = plain_table(f"own time of a {trend.node} per step", ("from", "before", "after", "change", "confidence"))
    several = several_steps(trend)
    for line in lines:
        before, after = (sum(times) for times in zip(*((one.before_ns, one.after_ns) for one in line), strict=True))
        path = line[0].module.path
        name = Text(plain(shortened(path if len(line) == 1 else trend.patterns.get(path, path), 240)))
        name.append(f"  {len(line)} x" if len(line) > 1 else "").append(_of_step(line[0].module, several), style="dim")
        by = Text(change(after / before - 1), style="red" if after > before else "green")
        run, sure = plain(trend.runs[line[0].run].name), percent(min(one.confidence for one in line))
        table.add_row(WrappedText(name), run, duration(before), duration(after), by, sure)
    return table


def _modules(trend: Trend, modules: list[Module], bars: int) -> Table:
    table = plain_table(f"{trend.node}, median per step", ("subtree", "own", "over runs"))
    several = several_steps(trend)
    for module in modules:
        name = Text(plain(shortened(module.path, 240))).append(_of_step(module, several), style="dim")
        times = [last(values) for values in (module.subtree_ns, module.own_ns)]
        table.add_row(WrappedText(name), *times, _sparkline(drawn(module)[-bars:]))
    return table


def several_steps(trend: Trend) -> bool:
    """Whether modules must be distinguished by kinds and sizes of steps."""
    return len({module.step for module in trend.modules}) > 1


def _of_step(module: Module, several: bool) -> str:  # noqa: FBT001
    return f"  in {plain(module.step)}" if several else ""


def drawn(module: Module) -> Floats:
    """The times that a chart shows: its own; of modules that only hold others, those of the subtree."""
    return module.own_ns if np.nan_to_num(module.own_ns).any() else module.subtree_ns


def last(values: Floats) -> str:
    """The time in the last run, if there is one."""
    return "" if np.isnan(values[-1]) else duration(float(values[-1]))


def scale(values: Floats) -> tuple[float, float]:
    """The least time of a chart, and how far it reaches above: at least a tenth of the most, so that noise is small."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, max(high - low, high / 10, 1.0)


def _sparkline(values: Floats) -> str:
    """A bar for each run."""
    if np.isnan(values).all():
        return ""
    low, span = scale(values)
    return "".join(" " if value != value else _BARS[int((value - low) / span * 7.99)] for value in values.tolist())


def judged(trend: Trend, failed: list[Change], limit: float) -> list[str]:
    """What failed, a line for each of the worst."""
    lines = [
        f"slower by {one.change:.1%}, more than {limit:.1%}: {plain(one.module.path)} from "
        f"{plain(trend.runs[one.run].name)} on"
        for one in failed[:_MOST_FAILED]
    ]
    more = len(failed) - _MOST_FAILED
    return lines + ([f"and {more:,} more: --json lists all"] if more > 0 else [])
