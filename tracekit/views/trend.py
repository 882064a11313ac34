"""How modules did over many runs: in the terminal, as plain data, and as an HTML page without scripts."""

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.arrays.types import Columns, Floats
from tracekit.comparison.trend import Change, Module, Trend
from tracekit.errors import plain
from tracekit.views.formatting import (
    WrappedText,
    by_key,
    change,
    count,
    duration,
    percent,
    plain_table,
    shortened,
    worst,
)
from tracekit.views.page import digest
from tracekit.views.page.limits import MODULES, TEXT, clipped

_BARS = "▁▂▃▄▅▆▇█"
_LEAST_BARS = 8
#: What stands beside the bars of a line.
_OTHERS = 70
_WIDTH, _HEIGHT, _MARGIN = 240, 32, 4
_STYLE = """
:root { color-scheme: light dark; --muted: light-dark(#586272, #9ca7b6); --line: light-dark(#1f5fd0, #7fb0ff); }
:root { --slower: light-dark(#b3261e, #ff9a8f); --faster: light-dark(#0f6b46, #6fdcae); }
body { margin: 2rem auto; max-width: 1200px; padding: 0 1rem; font: 14px/1.45 system-ui, sans-serif; }
p, th { color: var(--muted); } th { text-align: left; font-weight: 500; } h1 { font-size: 1.4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem 0.2rem 0; border-bottom: 1px solid light-dark(#dfe3e9, #2b323c); }
td:first-child { overflow-wrap: anywhere; } td:nth-child(2), td:nth-child(3), td:nth-child(4) { white-space: nowrap; }
th:first-child { width: 40%; } th:last-child { width: 25%; } svg { display: block; }
svg { --drawn: var(--line); } .sum { --drawn: var(--muted); }
polyline { fill: none; stroke: var(--drawn); stroke-width: 1.5; } circle { fill: var(--drawn); }
.slower { color: var(--slower); fill: var(--slower); } .faster { color: var(--faster); fill: var(--faster); }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{digest}'">
<meta name="viewport" content="width=device-width"><style>{style}</style></head>
<body><main><h1>{title}</h1>{notes}<table><thead><tr><th>{node}</th>
<th>own time over runs (grey: of the subtree)</th><th>own</th>
<th>subtree</th><th>changes of own time</th></tr></thead><tbody>
{rows}
</tbody></table></main></body></html>
"""


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
    """At most so many changes, equal ones of numbered siblings on one line, then as many modules with the most time."""
    parts: list[RenderableType] = [Text(plain(note), style="dim") for note in trend.notes]
    parts.append(Text(summary(trend)))
    lines = folded(trend)
    if lines:
        parts.append(_changes(trend, lines[:most]))
    rest = {"change": len(lines) - most, trend.node: len(trend.modules) - most}
    if trend.modules:
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
        times, shown = [last(values) for values in (module.subtree_ns, module.own_ns)], drawn(module)[-bars:]
        table.add_row(WrappedText(name), *times, "" if np.isnan(shown).all() else _bars(shown))
    return table


def _bars(shown: Floats) -> str:
    low, span = scale(shown)
    return "".join(" " if value != value else _BARS[int((value - low) / span * 7.99)] for value in shown.tolist())


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


def judged(trend: Trend, failed: list[Change], limit: float) -> list[str]:
    """What failed, a line for each of the worst."""
    return worst(
        [
            f"slower by {one.change:.1%}, more than {limit:.1%}: {plain(one.module.path)} from "
            f"{plain(trend.runs[one.run].name)} on"
            for one in failed
        ]
    )


def page(trend: Trend) -> bytes:
    """The page: modules that changed first, then those with the most time."""
    changes = by_key(trend.changes, lambda one: (one.module.step, one.module.path))
    order = sorted(trend.modules, key=lambda module: (module.step, module.path) not in changes)
    left_out = [f"{len(order) - MODULES:,} {trend.node}s of less time are left out."] if len(order) > MODULES else []
    several = several_steps(trend)
    lines = [_row(trend, one, changes.get((one.step, one.path), []), with_step=several) for one in order[:MODULES]]
    text = _PAGE.format(
        title=_escaped(f"{trend.runs[0].name} to {trend.runs[-1].name}"),
        digest=digest(_STYLE),
        style=_STYLE,
        notes="".join(f"<p>{_escaped(note)}</p>" for note in [summary(trend), *trend.notes, *left_out]),
        node=trend.node,
        rows="\n".join(lines),
    )
    return text.encode("utf-8", "replace")


def _escaped(text: str) -> str:
    return html.escape(clipped(text, TEXT))


def _row(trend: Trend, module: Module, changes: list[Change], *, with_step: bool) -> str:
    texts = "<br>".join(
        f'<span class="{_class(one)}">{one.change:+.1%} from {_escaped(trend.runs[one.run].name)} on</span>: '
        f"{duration(one.before_ns)} to {duration(one.after_ns)}, confidence {percent(one.confidence)}"
        for one in sorted(changes, key=lambda one: one.run)
    )
    name = _escaped(module.path) + (f"<br><small>{_escaped(module.step)}</small>" if with_step else "")
    cells = [name, _chart(trend, module, changes), last(module.own_ns), last(module.subtree_ns), texts]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _class(change: Change) -> str:
    return "slower" if change.change > 0 else "faster"


def _chart(trend: Trend, module: Module, changes: list[Change]) -> str:
    """A line through the times of all runs, from the least to the most; it breaks where a run has none."""
    times = drawn(module)
    low, span = scale(times)
    x = _MARGIN + np.arange(len(trend.runs)) * ((_WIDTH - 2 * _MARGIN) / max(len(trend.runs) - 1, 1))
    y = _HEIGHT - _MARGIN - (times - low) / span * (_HEIGHT - 2 * _MARGIN)
    dots = "".join(
        f'<circle class="{_class(one)}" cx="{x[one.run]:.0f}" cy="{y[one.run]:.1f}" r="3"/>' for one in changes
    )
    label, kind = f"{duration(low)} to {duration(float(np.nanmax(times)))}", "own" if times is module.own_ns else "sum"
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    lines = _lines(x.tolist(), y.tolist())
    return f'<svg class="{kind}" {size} role="img" aria-label="{label}"><title>{label}</title>{lines}{dots}</svg>'


def _lines(x: list[float], y: list[float]) -> str:
    pieces = [[*group] for known, group in groupby(range(len(y)), lambda at: y[at] == y[at]) if known]
    return "".join(
        f'<polyline points="{" ".join(f"{x[at]:.0f},{y[at]:.1f}" for at in line)}"/>'
        if len(line) > 1
        else f'<circle cx="{x[line[0]]:.0f}" cy="{y[line[0]]:.1f}" r="1.5"/>'
        for line in pieces
    )
