"""How modules did over many runs, as one HTML page: a line and a chart per module, without scripts."""

from __future__ import annotations

import html
from itertools import groupby

import numpy as np

from tracekit.comparison.trend import Change, Module, Trend
from tracekit.views.formatting import by_key, duration, percent
from tracekit.views.page.document import digest
from tracekit.views.page.limits import MODULES, TEXT, clipped
from tracekit.views.trend import drawn, last, scale, several_steps, summary

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
