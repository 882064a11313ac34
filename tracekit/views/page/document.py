"""The page as one HTML file: template, styles, scripts and data, with nothing to be loaded.

The page's Content-Security-Policy allows only these styles and scripts, by digest, and no requests at all. Names of
modules and kernels are data: JSON without any character that means something in HTML, shown as text only.
"""

import html
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from tracekit.aggregates.subtrees import hierarchy
from tracekit.answers import launches, processes, roofline, steps as step_times
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.progress import Progress, no_progress
from tracekit.views.budget import budgets_of
from tracekit.views.page import digest, overview
from tracekit.views.page.changes import changes, titles
from tracekit.views.page.figures import memory, roof, shapes
from tracekit.views.page.kernels import kernels, lines
from tracekit.views.page.nodes import nodes, phases
from tracekit.views.page.timeline import chosen, steps, telling_reports, timelines, with_wall_clock

_ASSETS = files("tracekit.views.page") / "assets"
#: In the order in which they run: each uses only those before it.
SCRIPTS = (
    *("formatting", "elements", "labels", "data", "colours", "selection", "link", "phases", "table", "overview"),
    *("budget", "findings", "changes", "icicle", "bottom_up", "difference", "search", "card", "modules", "kernels"),
    *("steps", "bands", "timeline", "timeline_moves", "roofline", "memory", "ranks", "idle", "theme", "main"),
)
STYLES = ("page", "parts")
_ESCAPED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
#: How many times :func:`_parts` yields for one dataset; for two it does once more.
_PARTS = 13
#: Significant digits of decimals.
_DIGITS = 9


def page(
    dataset: Dataset,
    *before: Dataset,
    progress: Progress = no_progress,
    options: dict[str, Any] | None = None,
    step: int | None = None,
) -> bytes:
    """The page of a dataset, compared with earlier ones if there are any.

    ``options`` are keyword arguments of the analysis ``roofline``; steps with the index ``step`` come first on the
    timeline.

    Raises:
        UsageError: If there is no work in such a step.
    """
    return document(contents(dataset, before, progress, options or {}, step))


def document(data: dict[str, Any]) -> bytes:
    """The page of the data that :func:`~tracekit.views.page.document.contents` gathered."""
    scripts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}}})();\n'
    style = "".join(_asset(f"{name}.css") for name in STYLES)
    text = Template(_asset("page.html")).substitute(
        title=html.escape(data["about"]["title"]),
        script_digest=digest(script),
        style_digest=digest(style),
        style=style,
        script=script,
        data=embedded(data),
    )
    return text.encode("utf-8", "replace")


def embedded(data: object) -> str:
    """JSON for a script element: no character in it can end the element or begin another."""
    text = json.dumps(_short(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


def _short(data: object) -> object:
    """Data in which decimals have no more digits than anybody can see."""
    if isinstance(data, float):
        short = float(f"{data:.{_DIGITS}g}")
        return int(short) if short.is_integer() else short
    if isinstance(data, dict):
        return {key: _short(value) for key, value in data.items()}
    return [_short(value) for value in data] if isinstance(data, list) else data


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def contents(
    dataset: Dataset, before: Sequence[Dataset], progress: Progress, options: dict[str, Any], step: int | None
) -> dict[str, Any]:
    """The data of the page, part by part, as :func:`page` describes it."""
    data: dict[str, Any] = {}
    progress("gathering", 0.0)
    for done, part in enumerate(_parts(dataset, before, options, step), 1):
        data |= part
        progress("gathering", done / (_PARTS + bool(before)))
    return data


def _parts(
    dataset: Dataset, before: Sequence[Dataset], options: dict[str, Any], step: int | None
) -> Iterator[dict[str, Any]]:
    heading = f"{titles(before)} \N{RIGHTWARDS ARROW} {overview.title(dataset)}" if before else overview.title(dataset)
    in_processes = processes.frame(dataset)
    yield {"about": overview.about(dataset, in_processes) | {"title": heading}, "coverage": overview.coverage(dataset)}
    budgets = budgets_of(dataset)
    yield {"budget": overview.budget(dataset, budgets), "findings": overview.first_findings(dataset)}
    modules, by_module = hierarchy(dataset), launches.frame(dataset)
    by_step = with_wall_clock(step_times.frame(dataset), budgets)
    if step is not None and not ((by_step["index"] == step) & (by_step["kernels"] > 0)).any():
        raise UsageError(f"no step with work has the index {step}; tracekit show steps lists them")
    by_phase = phases(dataset)
    yield {"phases": by_phase.data}
    page_nodes = nodes(dataset, modules, by_module, by_phase.own)
    yield {"nodes": page_nodes.data}
    yield {"kernels": kernels(dataset, modules, page_nodes, by_phase.names)}
    yield {"sources": lines(dataset, modules, page_nodes)}
    yield {"shapes": shapes(dataset, modules, page_nodes)}
    telling = telling_reports(budgets)
    yield {"timeline": timelines(dataset, modules, page_nodes, by_step, chosen(by_step, step, telling), telling)}
    yield {"memory": memory(dataset, modules, page_nodes, by_step)}
    yield {"steps": steps(by_step, dataset), "processes": overview.by_process(in_processes)}
    yield {"ranks": overview.ranks(dataset, len(in_processes), budgets)}
    yield {"idle": overview.idle(dataset), "launched": overview.launched(by_module)}
    yield {"roofline": roof(roofline.frame(dataset, **options), modules, page_nodes)}
    if before:
        yield {"changes": changes(before, dataset, page_nodes)}
