"""A timeline as Chrome's JSON, for chrome://tracing, Perfetto, speedscope and scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.exports.base import exported_file
from tracekit.exports.timeline import write_timeline
from tracekit.exports.times import for_sums

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "chrome"
HELP = "a timeline as Chrome's JSON"


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the timeline.

    Raises:
        ExportError: If it cannot be written there.
    """
    with exported_file(dataset, target) as partial, partial.open("wb") as file:
        write_timeline(file, dataset, progress, for_sums)
