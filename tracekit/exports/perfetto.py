"""A timeline for Perfetto: Chrome's JSON, compressed with gzip, which ui.perfetto.dev opens as it is.

Perfetto's own protobuf would hold no more, and needs its events in the order of time, while our tables are sorted by
module and written piece by piece.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from tracekit.exports.base import exported_file
from tracekit.exports.timeline import write_timeline
from tracekit.exports.times import for_truncation

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "perfetto"
HELP = "a timeline for ui.perfetto.dev (gzipped JSON)"

#: Fast enough not to slow the export; the highest level makes files a third smaller and takes ten times as long.
_LEVEL = 1


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the timeline.

    Raises:
        ExportError: If it cannot be written there.
    """
    with (
        exported_file(dataset, target) as partial,
        partial.open("wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
    ):
        write_timeline(packed, dataset, progress, for_truncation)
