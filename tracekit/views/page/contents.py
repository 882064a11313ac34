"""All that a page shows, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.analyses import launches, roofline, steps as steps_by_time
from tracekit.analyses.subtrees import hierarchy
from tracekit.views.page.about import about, by_process, coverage, title
from tracekit.views.page.changes import changes
from tracekit.views.page.idle import idle, launched
from tracekit.views.page.kernels import kernels
from tracekit.views.page.nodes import nodes
from tracekit.views.page.roofline import roof
from tracekit.views.page.shapes import shapes
from tracekit.views.page.steps import steps
from tracekit.views.page.timeline import timelines

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress


def contents(dataset: Dataset, before: Dataset | None, progress: Progress, options: dict[str, Any]) -> dict[str, Any]:
    """What is known of a dataset, part by part.

    Args:
        dataset: The dataset.
        before: An earlier one to compare it with.
        progress: Told how far this is.
        options: What is said of devices and dtypes: keywords of the analysis ``roofline``.

    Raises:
        DatasetError: If a dataset cannot be read, or the two cannot be compared.
        UsageError: If a peak or dtype is not understood.
    """
    told = _Stages(progress, 9 if before is None else 10)
    found: dict[str, Any] = {"about": about(dataset), "coverage": coverage(dataset)}
    told.next()
    modules, host, frame = hierarchy(dataset), launches.frame(dataset), steps_by_time.frame(dataset)
    told.next()
    its = nodes(dataset, modules, host)
    found["nodes"] = its.data
    told.next()
    found["kernels"] = kernels(dataset, modules, its)
    told.next()
    found["shapes"] = shapes(dataset, modules, its)
    told.next()
    found["timeline"] = timelines(dataset, modules, its, frame)
    told.next()
    found |= {"steps": steps(frame, dataset), "processes": by_process(dataset)}
    told.next()
    found |= {"idle": idle(dataset), "launched": launched(host)}
    told.next()
    found["roofline"] = roof(roofline.frame(dataset, **options), modules, its)
    told.next()
    if before is not None:
        found["changes"] = changes(before, dataset)
        found["about"]["title"] = f"{title(before)} \N{RIGHTWARDS ARROW} {title(dataset)}"
        told.next()
    return found


class _Stages:
    """Counts parts of the work that are done."""

    def __init__(self, progress: Progress, count: int) -> None:
        self._progress, self._count, self._done = progress, count, 0
        progress("gathering", 0.0)

    def next(self) -> None:
        self._done += 1
        self._progress("gathering", self._done / self._count)
