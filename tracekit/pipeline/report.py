"""One report: as a whole, or its processes apart, which makes the same dataset."""

from functools import partial
from pathlib import Path

from tracekit.pipeline.stages import ParseOptions, sqlite_bytes, tables_of
from tracekit.progress import Progress
from tracekit.readers.base import Reader
from tracekit.readers.nsight.report import StoredReader

#: A smaller report, as SQLite, is read as a whole: starting processes would take longer.
LEAST_BYTES = 96 << 20


def write_tables(
    path: Path, reader: Reader, folder: Path, progress: Progress, options: ParseOptions, scheduler: str | None
) -> None:
    """Reads one report and writes its tables and manifest into an empty folder.

    The dataset depends only on the report, not on where its processes are worked on.
    """
    if options.graph_captures or not isinstance(reader, StoredReader) or sqlite_bytes(path) < LEAST_BYTES:
        tables_of(path, partial(reader.read, path), folder, progress, options)
        return
    from tracekit.pipeline.processes import write_by_processes  # noqa: PLC0415 - few reports are so large

    with reader.stored(path, progress) as stored:
        if not write_by_processes(path, stored, folder, progress, options, scheduler):
            tables_of(path, stored.recording, folder, progress, options)
