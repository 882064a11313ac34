"""Findings in the terminal: what each would save, what to do, and the command that shows its evidence."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit.analyses.base import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain
from tracekit.views.formatting import duration, percent, records

#: How many the summary and the page show.
FIRST = 5
_INDENT = 3


def first(dataset: Dataset) -> list[dict[str, Any]]:
    """The first findings; none where a dataset of an earlier tracekit lacks what they need."""
    from tracekit.analyses import findings  # noqa: PLC0415 - pandas waits until it is needed

    return records(findings.columns(dataset))[:FIRST] if "waits" in dataset.tables else []


def as_text(answer: Columns, what: str) -> RenderableType:
    """A paragraph for each finding; ``what`` they save of, as :func:`tracekit.views.budget.window` calls it."""
    return Group(*(_paragraph(row, what) for row in records(answer)))


def _paragraph(row: dict[str, Any], what: str) -> RenderableType:
    where, spared = plain(row["module"] or "(outside)"), duration(row["saving_ns"])
    title = Text.assemble(
        f"{row['rank']:<{_INDENT}}", (row["family"], "bold"), f"  {where}  at most {spared} of the {what}, ",
        (percent(row["saving_share"]), "bold"),
    )  # fmt: skip
    command = Text(row["evidence"]["command"], style="dim")
    return Group(title, Padding(Group(Text(row["advice"]), command), (0, 0, 1, _INDENT), expand=False))


def line(rows: list[dict[str, Any]], what: str, command: str) -> Text:
    """Findings on one line: ``Findings (the most each saves of the median step): host_wait top.mlp 6.6 %, …``."""
    parts = [f"{row['family']} {plain(row['module'] or '(outside)')} {percent(row['saving_share'])}" for row in rows]
    text = Text.assemble((f"Findings (the most each saves of the {what}): ", "bold"), f"{', '.join(parts)}: ", command)
    text.no_wrap, text.overflow = True, "ignore"
    return text
