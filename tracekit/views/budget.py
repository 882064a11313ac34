"""The budget of steps in the terminal: a bar, and a line for each kind with the modules that lead it."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.answers.side_by_side import frame_of_parts
from tracekit.arrays.types import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain
from tracekit.steptime import budget as step_budget
from tracekit.steptime.timeline import waits_of_streams
from tracekit.views import formatting
from tracekit.views.formatting import CUT, Cells, columns_of, duration, fitting, percent, records

#: The colour and the letter of each kind in the bar.
_STYLES = {
    "compute": ("green", "C"),
    "communication": ("magenta", "N"),
    "communication_wait": ("bright_black", "n"),
    "copy": ("cyan", "M"),
    "host_blocked": ("red", "B"),
    "launch": ("yellow", "L"),
    "data_loading": ("bright_red", "D"),
    "compilation": ("bright_magenta", "Z"),
    "host_code": ("bright_yellow", "H"),
    "graph": ("blue", "G"),
    "dependency": ("bright_blue", "W"),
    "latency": ("bright_cyan", "T"),
    "unknown": ("white", "?"),
}
#: The most cells of the bar: it also goes into files, whose lines are not cut.
_BAR_CELLS = 80
#: The cells of a short name, and of its share.
_SHORT, _SHARE = 24, 5
#: The least cells of a name and its share.
_SHORTEST = 17
_LETTER, _LED_BY = "", "led by"


def budgets_of(dataset: Dataset) -> step_budget.Budgets | None:
    """Where the wall clock of steps went; None of subtrees."""
    return step_budget.summed(dataset) if dataset.root is None else None


def overview(dataset: Dataset, by: str) -> Columns:
    """The budgets by kind of every report, rank or host, with ``leading`` as text."""

    def of_part(part: Dataset) -> pd.DataFrame:
        answer = pd.DataFrame(step_budget.overview(part))
        return answer.assign(leading=answer.leading.map(lambda names: _names(names, 2 * _SHORT * len(names))))

    return columns_of(frame_of_parts(dataset, by, of_part))


def window(dataset: Dataset) -> str:
    """What a budget, a prediction and a finding are about: a step, or the recording if it has none."""
    return "step" if dataset.manifest["rows"]["steps"] else "recording"


def length(what: str, windows: int = 0) -> str:
    """What a budget of such a window divides, given of how many it is the mean, if that is known.

    It is not the step on the host, which has another length.
    """
    if windows == 1 or (what == "recording" and not windows):
        return f"Wall clock of the {what}"
    if what == "recording":
        return f"Wall clock of the recording (mean of {windows:,} by process and device)"
    return f"Wall clock per step (mean{f' of {windows:,}' * bool(windows)})"


def as_text(dataset: Dataset, answer: Columns, width: int) -> RenderableType | None:
    """The rows of an overview as the budget of a step, or of the recording; None if no device did anything."""
    rows = records(answer)
    if not rows:
        return None
    whole = max(round(row["step_ns"] / row["share"]) if row["share"] else 0 for row in rows)
    what = window(dataset)
    parts: list[RenderableType] = [
        Text(f"{length(what, rows[0]['windows'])}, {duration(whole)}", style="bold"),
        _bar(rows, min(width, _BAR_CELLS)),
        _table(rows, what, width),
    ]
    number, unknown = waits_of_streams(dataset)
    if unknown:
        note = f"{unknown:,} of {number:,} waits of streams do not record what for: work behind them counts as latency"
        parts.append(Text(note, style="dim"))
    return Group(*parts)


def _bar(rows: list[dict[str, Any]], width: int) -> Text:
    """The rows in shares of what they have together, so that the bar has no blank."""
    bar, reached, whole = Text(no_wrap=True), 0.0, sum(row["share"] for row in rows)
    for row in rows if whole else ():
        reached += row["share"]
        bar.append(_letter(row["kind"], round(reached / whole * width) - len(bar)))
    return bar


def _letter(kind: str, times: int = 1) -> Text:
    colour, letter = _STYLES[kind]
    return Text(letter * times, style=colour)


def _table(rows: list[dict[str, Any]], what: str, width: int) -> Table:
    columns: Cells = {
        _LETTER: [_letter(row["kind"]) for row in rows],
        "kind": [row["kind"].replace("_", " ") for row in rows],
        what: [duration(row["step_ns"]) for row in rows],
        "share": [percent(row["share"]) for row in rows],
        "of all": [percent(row["total_share"]) for row in rows],
        _LED_BY: [" " * _SHORTEST],
    }
    shown = fitting(columns, ("of all", _LED_BY), width)
    if shown.pop(_LED_BY, None):
        cells = formatting.room_beside(shown | {_LED_BY: []}, width) + len(_LED_BY)
        shown[_LED_BY] = [_names(row["leading"], cells) for row in rows]
    return formatting.table_of(shown, (_LETTER, "kind", _LED_BY))


def _names(leading: list[tuple[str, float]], width: int) -> str:
    """As many names as fit whole, each with its share; at least one, shortened if it must be."""
    names, cells = [""], width - _SHARE
    for count in range(min(len(leading), max(1, width // (_SHORT + _SHARE))), 0, -1):
        cells = width // count - _SHARE
        names = [plain(_shorter(name, cells)) for name, _ in leading[:count]]
        if max(map(cell_len, names)) <= cells:
            break
    return ", ".join(
        f"{formatting.truncate(name, cells)} {share:.0%}" for name, (_, share) in zip(names, leading, strict=False)
    )


def _shorter(pattern: str, cells: int) -> str:
    """The end of a pattern in so many cells, from one of its parts on that is a whole name, if one fits."""
    parts = pattern.split(".")
    ends = (".".join(parts[at:]) for at in range(1, len(parts)) if not parts[at].startswith("*"))
    # Names of ranges may hold dots, as in "FSDP::forward (blocks.4)".
    fitting = (f"{CUT}{end}" for end in ends if cell_len(end) < cells and end.count("(") == end.count(")"))
    return pattern if cell_len(pattern) <= cells else next(fitting, pattern)
