"""Everything that a page shows, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.analyses import launches, roofline, steps as step_times
from tracekit.analyses.subtrees import hierarchy
from tracekit.views.page.about import about, by_process, coverage, title
from tracekit.views.page.changes import changes
from tracekit.views.page.idle import idle, launched
from tracekit.views.page.kernels import kernels
from tracekit.views.page.nodes import nodes
from tracekit.views.page.phases import phases
from tracekit.views.page.roofline import roof
from tracekit.views.page.shapes import shapes
from tracekit.views.page.steps import steps
from tracekit.views.page.timeline import timelines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress

#: How many times :func:`_parts` yields for one dataset, and for two.
_ALONE, _COMPARED = 9, 10


def contents(dataset: Dataset, before: Dataset | None, progress: Progress, options: dict[str, Any]) -> dict[str, Any]:
    """The data of the page, part by part.

    Args:
        dataset: The dataset.
        before: An earlier dataset to compare it with.
        progress: Called after each part.
        options: Peaks of devices and dtypes: keyword arguments of the analysis ``roofline``.

    Raises:
        DatasetError: If a dataset cannot be read, or the two cannot be compared.
        UsageError: If a peak or dtype is not understood.
    """
    data: dict[str, Any] = {}
    count = _ALONE if before is None else _COMPARED
    progress("gathering", 0.0)
    for done, part in enumerate(_parts(dataset, before, options), 1):
        data |= part
        progress("gathering", done / count)
    return data


def _parts(dataset: Dataset, before: Dataset | None, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of the page, each as soon as it is ready; tables that several parts need are read once."""
    heading = title(dataset) if before is None else f"{title(before)} \N{RIGHTWARDS ARROW} {title(dataset)}"
    yield {"about": about(dataset) | {"title": heading}, "coverage": coverage(dataset)}
    modules, by_module, by_step = hierarchy(dataset), launches.frame(dataset), step_times.frame(dataset)
    by_phase = phases(dataset)
    yield {"phases": by_phase.data}
    page_nodes = nodes(dataset, modules, by_module, by_phase.own)
    yield {"nodes": page_nodes.data}
    yield {"kernels": kernels(dataset, modules, page_nodes, by_phase.names)}
    yield {"shapes": shapes(dataset, modules, page_nodes)}
    yield {"timeline": timelines(dataset, modules, page_nodes, by_step)}
    yield {"steps": steps(by_step, dataset), "processes": by_process(dataset)}
    yield {"idle": idle(dataset), "launched": launched(by_module)}
    yield {"roofline": roof(roofline.frame(dataset, **options), modules, page_nodes)}
    if before is not None:
        yield {"changes": changes(before, dataset)}
