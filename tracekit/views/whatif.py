"""A prediction in the terminal and as JSON: a step and its budget, before and after changes."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.steptime.budget import KINDS
from tracekit.steptime.whatif import Prediction
from tracekit.views.budget import length
from tracekit.views.formatting import change, count, duration, fitting, percent, table_of

#: What a narrow terminal does without, first to last.
_SPARED = ("share before", "share after", "before")


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction as numbers."""
    return {
        "step_before_ns": prediction.step_before_ns,
        "step_after_ns": prediction.step_after_ns,
        "range_ns": None if prediction.range_ns is None else [*prediction.range_ns],
        "blocked": [*prediction.blocked],
        "budget": {"before": prediction.before, "after": prediction.after},
    }


def as_text(prediction: Prediction, what: str, width: int) -> RenderableType:
    """The prediction as lines so wide; ``what`` it is about, as :func:`tracekit.views.budget.window` calls it."""
    before, after = prediction.step_before_ns, prediction.step_after_ns
    low, high = prediction.range_ns or (after or 0, after or 0)
    times = (low, high) if after is None else (after,)
    then = " to ".join(map(duration, times))
    changed = " to ".join(change(time / before - 1) if before else "unknown" for time in times)
    parts: list[RenderableType] = [Text(f"{length(what)}: {duration(before)} before, {then} after ({changed})", "bold")]
    if after is not None and duration(low) != duration(high):
        note = f"Between {duration(low)} and {duration(high)}: the report does not record all that was waited for"
        parts.append(Text(note))
    parts += [_budgets(prediction, width)] if prediction.after else []
    if prediction.blocked:
        remedy = " ".join(f"--no-sync '{pattern}'" for pattern in prediction.blocked)
        note = f"calls that wait for the device cannot be captured in a graph, so these stay as they are: add {remedy}"
        parts.append(Text(note))
    if prediction.copies and after is None:
        note = f"no pinned copy shows how fast {prediction.copies:,} copies would be: between PCIe 5.0 and as before"
        parts.append(Text(note, style="dim"))
    if prediction.unproven:
        waits = "may stay as they are, or change with the rest of the step" if after is None else "stay as they are"
        note = f"not all ranks of {count(prediction.unproven, 'collective')} are known: waits in them {waits}"
        parts.append(Text(note, style="dim"))
    return Group(*parts)


def _budgets(prediction: Prediction, width: int) -> Table:
    sides = [{row["kind"]: row for row in rows} for rows in (prediction.before, prediction.after)]
    kinds = [kind for kind in KINDS if any(kind in side for side in sides)]
    before, after = ([side.get(kind, {"ns": 0, "share": 0.0}) for kind in kinds] for side in sides)
    changes = [other["ns"] - one["ns"] for one, other in zip(before, after, strict=True)]
    columns = {
        "kind": [kind.replace("_", " ") for kind in kinds],
        "before": [duration(row["ns"]) for row in before],
        "share before": [percent(row["share"]) for row in before],
        "after": [duration(row["ns"]) for row in after],
        "share after": [percent(row["share"]) for row in after],
        "change": [f"{'+' if change > 0 else ''}{duration(change)}" for change in changes],
    }
    return table_of(fitting(columns, _SPARED, width), ("kind",))
