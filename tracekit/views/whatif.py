"""A prediction in the terminal and as JSON: the median step and its budget, before and after changes."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.analyses.budget import KINDS
from tracekit.analyses.whatif import Prediction
from tracekit.views.formatting import percent

_NS_PER_MS = 1_000_000


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction as numbers."""
    return {
        "step_before_ns": prediction.step_before_ns,
        "step_after_ns": prediction.step_after_ns,
        "range_ns": None if prediction.range_ns is None else [*prediction.range_ns],
        "budget": {"before": prediction.before, "after": prediction.after},
    }


def as_text(prediction: Prediction) -> RenderableType:
    """The prediction as lines."""
    before, after = prediction.step_before_ns, prediction.step_after_ns
    change = percent(abs(after / before - 1)) if before else "unknown"
    sign = "+" if after > before else "-"
    head = f"Median step: {_ms(before)} before, {_ms(after)} after ({sign}{change})"
    parts: list[RenderableType] = [Text(head, style="bold"), _budgets(prediction)]
    low, high = prediction.range_ns or (after, after)
    if low < high:
        note = f"Between {_ms(low)} and {_ms(high)}: the report does not record which work streams waited for"
        parts.insert(1, Text(note))
    if prediction.unproven:
        note = f"{prediction.unproven:,} collectives keep their waits: not all of their ranks are known"
        parts.append(Text(note, style="dim"))
    return Group(*parts)


def _budgets(prediction: Prediction) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kind", no_wrap=True)
    for heading in ("before", "share", "after", "share", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    before, after = ({row["kind"]: row for row in rows} for rows in (prediction.before, prediction.after))
    for kind in KINDS:
        if kind in before or kind in after:
            one, other = (rows.get(kind, {"ns": 0, "share": 0.0}) for rows in (before, after))
            figures = (_ms(one["ns"]), percent(one["share"]), _ms(other["ns"]), percent(other["share"]))
            table.add_row(kind.replace("_", " "), *figures, f"{(other['ns'] - one['ns']) / _NS_PER_MS:+,.3f} ms")
    return table


def _ms(ns: int) -> str:
    return f"{ns / _NS_PER_MS:,.3f} ms"
