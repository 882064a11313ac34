"""One report through the stages: read, decode, evidence, attribute, write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.attribution import attribute
from tracekit.dataset.writing import write
from tracekit.errors import ReportError
from tracekit.files import reason_of
from tracekit.markers.kinds import AUTO
from tracekit.pipeline.about import about, folder_of
from tracekit.trace.decoding import decode
from tracekit.trace.evidence import evidence_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.progress import Progress
    from tracekit.readers.base import Reader
    from tracekit.recording.tables import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is asked of the dataset of a report.

    Attributes:
        first_id: The number from which ids are counted.
        by: What the hierarchy shall be keyed by: one of ``markers.kinds.HIERARCHIES``.
        graph_captures: Traces of graph captures, or folders of such, that belong to the report.
        required: Whether one of these must be of the report's own processes.
    """

    first_id: int = 0
    by: str = AUTO
    graph_captures: tuple[Path, ...] = ()
    required: bool = True


def tables_of(path: Path, reader: Reader, folder: Path, progress: Progress, wishes: Wishes) -> None:
    """Reads one report and writes its tables and manifest into an empty folder.

    Args:
        path: The report.
        reader: The reader that recognises it.
        folder: The folder.
        progress: Called with each stage and the share of it that is done.
        wishes: What is asked of the dataset.

    Raises:
        ReportError: If the report cannot be read.
    """
    recording = _read(reader, path, progress)
    if wishes.graph_captures:
        from tracekit.pipeline.graph_captures import with_graph_captures  # noqa: PLC0415 - few reports have such traces

        recording = with_graph_captures(path, recording, wishes.graph_captures, required=wishes.required)
    pa.default_memory_pool().release_unused()
    trace = attribute(evidence_of(recording, decode(recording.texts), wishes.by))
    pa.default_memory_pool().release_unused()
    described = {
        "hierarchy": {"by": trace.evidence.keyed.by, "asked": wishes.by},
        "folder": folder_of(path),
        **about(recording),
    }
    write(folder, trace, described, progress, wishes.first_id)


def _read(reader: Reader, path: Path, progress: Progress) -> Recording:
    try:
        return reader.read(path, progress)
    except OSError as error:
        problem = f"cannot be read ({reason_of(error)})"
        raise ReportError(path, problem, "check its disk or network") from None
