"""What changed between two datasets, in the terminal and as plain data."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit.comparison.difference import Difference
from tracekit.comparison.step_metrics import KEYS, STEP
from tracekit.dataset.patterns import literals
from tracekit.errors import plain
from tracekit.views import formatting
from tracekit.views.formatting import WrappedText, by_key, change, count, duration, fitting, percent, records, worst

#: Rows by their key.
_Rows = dict[tuple[Any, ...], list[dict[str, Any]]]

_STYLE = {"slower": "red", "added": "red", "faster": "green", "gone": "green"}
#: Kernels shown of each module: those that changed most.
_MOST_KERNELS = 3
_FIGURES = ("before", "after", "change", " ", "kernels")
#: Which of these a narrow terminal does without, first to last, so that names have room for so many characters.
_SPARED, _LEAST_NAME = ("kernels", "before", " "), 16
#: Longer paths lose their middle.
_LONGEST = 240
_SUMMED = ("before_ns", "after_ns", "change_ns", "own_change_ns", "before_kernels", "after_kernels")


def as_json(difference: Difference, failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison as plain data, for other programs."""
    return {
        "notes": difference.notes,
        "wall_clocks": wall_clocks(difference),
        "rows": records(difference.rows),
        "phases": records(difference.phases),
        "kernels": records(difference.kernels),
        "failed": failed,
    }


def as_text(difference: Difference, most: int, width: int) -> RenderableType:
    """Whole steps first, then at most so many lines of modules, those whose own kernels changed most first.

    Equal changes share a line. For training, a line reports in which phases it changed, also where these changes cancel
    each other out.
    """
    rows, phases = records(difference.rows), by_key(records(difference.phases), _key)
    changed, same = changed_parts(rows), [row for row in rows if row["what"] != "step" and row["status"] == "same"]
    moved = {key for key, parts in phases.items() if any(part["status"] in ("slower", "faster") for part in parts)}
    only_in_phases = [row for row in same if _key(row) in moved]
    steps = [row | {"copies": [row]} for row in whole_steps(rows)]
    lines = by_own_change(changed + only_in_phases, difference.patterns)
    parts: list[RenderableType] = [Text(plain(note), style="dim") for note in difference.notes]
    for kind, (before, after) in difference.wall_clocks.items():
        step = STEP if kind == STEP else f"{plain(kind)} step"
        figures = f"{duration(before)} before, {duration(after)} after ({change(after / before - 1)})"
        parts.append(Text(f"Wall clock of a {step}: {figures}", style="bold"))
    heading = "GPU time per step" if difference.wall_clocks else "per step"
    shown = steps + [line | {"by": grown_by(line, lines)} for line in lines[:most]]
    no_module = {"shown": f"(no {difference.node})"}
    shown = [line | no_module if line["what"] == "unknown" else line for line in shown]
    parts.append(_table(heading, shown, phases, by_module(difference), width))
    parts.append(Text(_tally(changed, len(only_in_phases), difference.node)))
    if len(lines) > most:
        parts.append(Text(f"{count(len(lines) - most, 'more line')}: --top N", style="dim"))
    return Group(*parts)


def wall_clocks(difference: Difference) -> dict[str, dict[str, int]]:
    """The wall clock of steps by kind, as plain data."""
    return {kind: found._asdict() for kind, found in difference.wall_clocks.items()}


def _tally(changed: list[dict[str, Any]], only_in_phases: int, node: str) -> str:
    all_changed = Counter(row["status"] for row in changed)
    only_below = Counter(row["status"] for row in changed if not row["own_change_ns"])
    parts = [
        f"{all_changed[status]} {status}"
        + (f" ({only_below[status]} only in sub{node}s)" if only_below[status] else "")
        for status in _STYLE
        if status in all_changed
    ]
    if only_in_phases:
        parts.append(f"{only_in_phases} the same in total, not in each phase")
    if not parts:
        return f"No {node} changed by more than the spread between steps."
    return f"{node.capitalize()}s: {', '.join(parts)}"


def judged(failed: list[dict[str, Any]], limit: float) -> list[str]:
    """What failed the comparison, a line for each of the worst; first the kinds of steps that cannot be compared."""
    order = sorted(
        failed, key=lambda row: (row["status"] == "slower", row["what"] != "step", -abs(row["own_change_ns"]))
    )
    return worst(
        [
            f"{_judgement(row, limit)}: " + " ".join(dict.fromkeys(plain(str(row[key])) for key in KEYS if row[key]))
            for row in order
        ]
    )


def _judgement(row: dict[str, Any], limit: float) -> str:
    if row["status"] == "unlike":
        return "no steps of the same kind and size in both datasets, cannot be compared"
    if row["status"] != "slower":
        side = "second" if row["status"] == "added" else "first"
        return f"only in the {side} dataset, cannot be compared"
    if row["change"] is None:
        return f"slower by {duration(row['change_ns'])}, from 0 ns"
    return f"slower by {percent(row['change'])}, more than {percent(limit)}"


def whole_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of whole steps: every kind, and those of its sizes that became slower or faster."""
    return [
        row
        for row in rows
        if row["what"] == "step" and (row["shapes"] is None or row["status"] in ("slower", "faster"))
    ]


def changed_parts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of modules, unattributed work and work between steps that changed."""
    return [row for row in rows if row["what"] != "step" and row["status"] not in ("same", "unlike")]


def by_own_change(changed: list[dict[str, Any]], patterns: dict[str, str]) -> list[dict[str, Any]]:
    """Lines of :func:`folded`, the largest change of own kernels first."""
    return sorted(folded(changed, patterns), key=lambda line: -abs(line["own_change_ns"]))


def by_module(difference: Difference) -> _Rows:
    """The kernels that changed, by the key of the row they belong to."""
    return by_key(records(difference.kernels), _key)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in KEYS)


def folded(rows: list[dict[str, Any]], patterns: dict[str, str]) -> list[dict[str, Any]]:
    """Modules whose paths differ only in a number, with equal shapes and status, as one line with their sums."""
    groups = by_key(rows, lambda row: (patterns.get(row["path"], row["path"]), row["shapes"], row["status"]))
    series = Counter(patterns.values())
    return [
        {
            **copies[0],
            **_sums(copies),
            "path": _numbered(pattern, [row["path"] for row in copies], series[pattern]),
            "copies": copies,
        }
        for (pattern, _, _), copies in groups.items()
    ]


def _numbered(pattern: str, paths: list[str], series: int) -> str:
    if len(paths) == 1:
        return paths[0]
    literal = literals(pattern)
    if len(paths) >= series or len(literal) != 2:  # noqa: PLR2004 - around one number
        return pattern
    numbers = [path[len(literal[0]) : len(path) - len(literal[1])] for path in paths]
    return f"{literal[0]}{{{','.join(sorted(numbers, key=lambda number: (len(number), number)))}}}{literal[1]}"


def grown_by(line: dict[str, Any], lines: list[dict[str, Any]]) -> str | None:
    """The line below a module that explains most of its change, if that is at least half, by its relative path."""
    above = tuple(f"{copy['path']}." for copy in line["copies"])
    most, name = abs(line["change_ns"]) / 2, None
    for other in lines:
        inside = [copy for copy in other["copies"] if copy["path"].startswith(above)]
        change = sum(copy["own_change_ns"] for copy in inside)
        if inside and change * line["change_ns"] > 0 and abs(change) >= most:
            most, name = abs(change), other["path"].removeprefix(f"{line['path']}.")
    return name


def _sums(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    known = {name: [row[name] for row in rows if row[name] is not None] for name in _SUMMED if name in rows[0]}
    return {name: sum(values) if values else None for name, values in known.items()}


def _table(heading: str, lines: list[dict[str, Any]], phases: _Rows, kernels: _Rows, width: int) -> Table:
    rows = [row for line in lines for row in _printed(line, phases, kernels)]
    columns = {name: [figures[name] for _, figures in rows] for name in _FIGURES}
    fit = fitting({"": [Text(" " * _LEAST_NAME)]} | columns, _SPARED, width)
    shown = [name for name in _FIGURES if name in fit]
    table = formatting.plain_table(heading, map(str.strip, shown))
    for text, figures in rows:
        table.add_row(text, *(figures[name] for name in shown))
    return table


def _printed(line: dict[str, Any], phases: _Rows, kernels: _Rows) -> Iterator[tuple[RenderableType, dict[str, Text]]]:
    """A line, its phases and its kernels: each a name and :data:`_FIGURES`."""
    name = Text(plain(formatting.shortened(line.get("shown", line["path"]), _LONGEST)))
    name.style = "bold" if line["what"] == "step" else ""
    name.append(f"  {len(line['copies'])} x" if len(line["copies"]) > 1 else "")
    name.append(f" {plain(line['shapes'])}" if line["shapes"] else "", style="dim")
    by_phase = by_key(_parts(line, phases), lambda part: part["phase"])
    if len(by_phase) == 1 and not by_phase.keys() & {"forward", "other"}:
        name.append(f" {next(iter(by_phase))}", style="dim")
    name.append(f"  by {plain(line['by'])}" if line.get("by") else "", style="dim")
    yield WrappedText(name), _figures(line, _status(line))
    changed = (part for part in _parts(line, phases) if part["status"] in _STYLE and len(by_phase) > 1)
    for parts in by_key(changed, lambda part: (part["phase"], part["status"])).values():
        phase = parts[0] | _sums(parts)
        name = Text(f"in {phase['phase']}", style="dim")
        yield Padding(name, (0, 0, 0, 2)), _figures(phase, _status(phase))
    for kernel in kernels_of(line, kernels)[:_MOST_KERNELS]:
        name = Text(plain(kernel["name"]), style="dim")
        yield Padding(WrappedText(name), (0, 0, 0, 4)), _figures(kernel, Text())


def _status(line: dict[str, Any]) -> Text:
    return Text(line["status"], style=_STYLE.get(line["status"], "dim"))


def _parts(line: dict[str, Any], rows: _Rows) -> list[dict[str, Any]]:
    """The phases, or kernels, of the modules of a line."""
    return [part for copy in line["copies"] for part in rows.get(_key(copy), [])]


def kernels_of(line: dict[str, Any], kernels: _Rows) -> list[dict[str, Any]]:
    """The kernels of :func:`by_module` that changed in the modules of a line, summed by name."""
    by_name = by_key(_parts(line, kernels), lambda kernel: kernel["name"])
    summed: list[dict[str, Any]] = [{"name": name, **_sums(rows)} for name, rows in by_name.items()]
    return sorted(summed, key=lambda kernel: -abs(kernel["change_ns"]))


def _figures(row: dict[str, Any], status: Text) -> dict[str, Text]:
    times = (row[f"{side}_ns"] for side in ("before", "after"))
    before, after = ("" if time is None else duration(round(time)) for time in times)
    changed = round(row["change_ns"])
    text = f"{'' if changed < 0 else '+'}{duration(changed)}"
    if row["before_ns"]:
        text += f" ({change(row['change_ns'] / row['before_ns'])})"
    numbers = [row[f"{side}_kernels"] or 0 for side in ("before", "after")]
    counts = [f"{number:,.0f}" if number == round(number) else f"{number:,.1f}" for number in numbers]
    kernels = " → ".join(dict.fromkeys(counts))
    return dict(zip(_FIGURES, (Text(before), Text(after), Text(text), status, Text(kernels)), strict=True))
